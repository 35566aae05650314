-- _UTF8 collations exist since SQL Server 2019. On older servers, use another rule for lanes.

-- The smallest row.
INSERT INTO [once_outbox] (id, topic, body) VALUES (N'order-1', N'orders', CAST('{"total": 12}' AS varbinary(max)));

-- With an ordering key, and the lane of Go programs.
INSERT INTO [once_outbox] (id, topic, ordering_key, lane, header, produced, body)
VALUES (N'order-2', N'orders', N'customer 7',
	CAST(SUBSTRING(HASHBYTES('SHA2_256', CAST(N'customer 7' COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(255))), 1, 1) AS int) / 16,
	N'{"text": {"content-type": "application/json"}}', N'2026-11-21T23:00:00.123Z', CAST('{"total": 12}' AS varbinary(max)));

-- Published in an hour.
INSERT INTO [once_outbox] (id, topic, body, state, due)
VALUES (N'order-3', N'orders', CAST('{"total": 12}' AS varbinary(max)), 1,
	DATEDIFF_BIG(microsecond, CAST('1970-01-01T00:00:00' AS datetime2(7)), SYSUTCDATETIME()) + 3600000000);
