package redisstore

import (
	_ "embed"

	"github.com/redis/go-redis/v9"
)

// Each script of keys begins with record.lua, which reads the record.
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
	//go:embed registry.lua
	registryLua string

	plainScripts     = newScripts("local CONFIRMED = false\n")
	confirmedScripts = newScripts("local CONFIRMED = true\n")
)

// scripts are those of a store.
type scripts struct {
	get, claim, extend, settle, reopen, open, load, commit, registry *redis.Script

	commitText string // of commit
}

func newScripts(head string) scripts {
	with := func(lua string) *redis.Script { return redis.NewScript(head + recordLua + lua) }
	return scripts{get: with(getLua), claim: with(claimLua), extend: with(extendLua), settle: with(settleLua),
		reopen: with(reopenLua), open: with(openLua), load: with(loadLua), commit: with(commitLua), registry: redis.NewScript(registryLua),
		commitText: head + recordLua + commitLua}
}
