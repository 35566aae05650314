-- SQLite has no SHA-256: the program computes the lane, which is 10 for customer 7.

-- The smallest row.
INSERT INTO once_outbox (id, topic, body) VALUES ('order-1', 'orders', CAST('{"total": 12}' AS blob));

-- With an ordering key, and the lane of Go programs.
INSERT INTO once_outbox (id, topic, ordering_key, lane, header, produced, body)
VALUES ('order-2', 'orders', 'customer 7', 10,
	'{"text": {"content-type": "application/json"}}', '2026-11-21T23:00:00.123Z', CAST('{"total": 12}' AS blob));

-- Published in an hour.
INSERT INTO once_outbox (id, topic, body, state, due)
VALUES ('order-3', 'orders', CAST('{"total": 12}' AS blob), 1,
	CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + 3600000000);
