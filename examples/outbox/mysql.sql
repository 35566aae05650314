-- MySQL 8.0.16 or MariaDB 10.6, or newer. The connection's character set must be utf8mb4.

-- The smallest row.
INSERT INTO once_outbox (id, topic, body) VALUES ('order-1', 'orders', '{"total": 12}');

-- With an ordering key, and the lane of Go programs.
INSERT INTO once_outbox (id, topic, ordering_key, lane, header, produced, body)
VALUES ('order-2', 'orders', 'customer 7', CONV(LEFT(SHA2('customer 7', 256), 1), 16, 10),
	'{"text": {"content-type": "application/json"}}', '2026-11-21T23:00:00.123Z', '{"total": 12}');

-- Published in an hour.
INSERT INTO once_outbox (id, topic, body, state, due)
VALUES ('order-3', 'orders', '{"total": 12}', 1,
	TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) + 3600000000);
