package doctor_test

import (
	"context"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/store"
)

func TestDamagedConsumersAndPositions(t *testing.T) {
	at := fresh(t)
	queued(t, at, "billing", "orders", 1)
	queued(t, at, "mailing", "orders", 1)
	setter, _ := once.As[setter](at.Store)
	for _, partition := range []string{"orders/0", "orders/1"} {
		if err := setter.SetPosition(t.Context(), store.Position{Consumer: "billing", Partition: partition, Log: "log", Offset: 7}); err != nil {
			t.Fatal(err)
		}
	}
	findings := func() (all string) {
		t.Helper()
		report, err := doctor.Examine(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range report.Findings {
			if strings.HasPrefix(f.Name, "damaged-") || strings.HasPrefix(f.Name, "not-checked") {
				all += f.Name + " (" + string(f.Severity) + "): " + f.What + "\n"
			}
		}
		return all
	}
	if found := findings(); found != "" {
		t.Errorf("of an undamaged store:\n%s", found)
	}
	change(t, at, "UPDATE once_consumer SET key_name = '' WHERE name = 'mailing'")
	change(t, at, "UPDATE once_position SET log_name = '' WHERE partition_name = 'orders/1'")
	found := findings()
	for _, want := range []string{"damaged-consumers (unsafe): A consumer cannot be read", `"mailing"`, "damaged-positions (unsafe): A position of billing cannot be read", `"orders/1"`} {
		if !strings.Contains(found, want) {
			t.Errorf("doctor does not say %s:\n%s", want, found)
		}
	}
	if n := strings.Count(found, "\n"); n != 2 {
		t.Errorf("doctor found %d:\n%s", n, found)
	}
}

type setter interface {
	SetPosition(ctx context.Context, p store.Position) error
}
