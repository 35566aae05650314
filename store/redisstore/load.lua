onPrimary()
return { version(row), number(now), tonumber(row.status or ABSENT) == DONE and body() or '', flat }
