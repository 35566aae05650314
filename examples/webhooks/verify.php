<?php
// Receives webhooks. docs/webhooks.md describes the request.

/** Returns the webhook-id: handle it once. $body is file_get_contents('php://input'). */
function verify(string $secret, string $body, int $tolerance = 300): string {
    $id = $_SERVER['HTTP_WEBHOOK_ID'] ?? '';
    $at = $_SERVER['HTTP_WEBHOOK_TIMESTAMP'] ?? '';
    if ($id === '' || str_contains($id, '.') || !ctype_digit($at) || abs(time() - (int) $at) > $tolerance) {
        throw new RuntimeException('the webhook has a bad ID or time');
    }
    $key = base64_decode(preg_replace('/^whsec_/', '', $secret), true);
    $want = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$at.$body", $key, true));
    foreach (explode(' ', $_SERVER['HTTP_WEBHOOK_SIGNATURE'] ?? '') as $got) {
        if (hash_equals($want, $got)) {
            return $id;
        }
    }
    throw new RuntimeException('the webhook has no right signature');
}
