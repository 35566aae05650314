package silence

import (
	"testing"

	"github.com/google/uuid"
)

func TestKeys(t *testing.T) { pay.For(uuid.NewString()) }
