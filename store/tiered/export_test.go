package tiered

// Resealed returns the entry with a valid code, as anybody can make it for a
// store without a secret.
func Resealed(key string, entry []byte) []byte {
	if len(entry) < code {
		return entry
	}
	body := entry[:len(entry)-code]
	return append(body[:len(body):len(body)], newCodec(nil).code([16]byte([]byte(key)), body)...)
}
