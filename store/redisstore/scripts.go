package redisstore

import (
	_ "embed"

	"github.com/redis/go-redis/v9"
)

// Each script of keys begins with record.lua, which reads the record. Scripts that
// write documents have queue.lua.
var (
	//go:embed record.lua
	recordLua string
	//go:embed get.lua
	getLua string
	//go:embed claim.lua
	claimLua string
	//go:embed extend.lua
	extendLua string
	//go:embed settle.lua
	settleLua string
	//go:embed reopen.lua
	reopenLua string
	//go:embed open.lua
	openLua string
	//go:embed load.lua
	loadLua string
	//go:embed commit.lua
	commitLua string
	//go:embed queue.lua
	queueLua string
	//go:embed loaddoc.lua
	loadDocLua string
	//go:embed queued.lua
	queuedLua string
	//go:embed move.lua
	moveLua string

	plainScripts     = newScripts("local CONFIRMED = false\n")
	confirmedScripts = newScripts("local CONFIRMED = true\n")
)

// scripts are those of a store.
type scripts struct {
	get, claim, extend, settle, reopen, open, load, loadDoc, queued *redis.Script

	commit, move onceScript
}

// onceScript is a script that is never sent twice.
type onceScript struct{ hash, text string }

func newScripts(head string) scripts {
	with := func(lua string) *redis.Script {
		return redis.NewScript(head + recordLua + "row, flat = readRecord(KEYS[1])\n" + lua)
	}
	once := func(text string) onceScript { return onceScript{redis.NewScript(text).Hash(), text} }
	return scripts{get: with(getLua), claim: with(claimLua), extend: with(extendLua), settle: with(settleLua),
		reopen: with(reopenLua), open: with(openLua), load: with(loadLua),
		loadDoc: redis.NewScript(head + loadDocLua), queued: redis.NewScript(head + queuedLua),
		commit: once(head + recordLua + queueLua + commitLua), move: once(head + queueLua + moveLua)}
}
