package redisstore

import (
	_ "embed"

	"github.com/redis/go-redis/v9"
)

// Each script begins with record.lua, which reads the record.
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

	getScript    = redis.NewScript(recordLua + getLua)
	claimScript  = redis.NewScript(recordLua + claimLua)
	extendScript = redis.NewScript(recordLua + extendLua)
	settleScript = redis.NewScript(recordLua + settleLua)
	reopenScript = redis.NewScript(recordLua + reopenLua)
	openScript   = redis.NewScript(recordLua + openLua)
)
