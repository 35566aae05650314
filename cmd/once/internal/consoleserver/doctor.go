package consoleserver

import (
	"context"

	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/console"
)

var severities = map[doctor.Severity]console.Severity{doctor.Note: console.Note, doctor.Warning: console.Warning, doctor.Unsafe: console.Unsafe}

// Doctor returns what once doctor finds about a target. The secrets of ctx stay out of
// it.
func Doctor(ctx context.Context, t *target.Target) func(context.Context) ([]console.Finding, error) {
	return func(run context.Context) (all []console.Finding, err error) {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(run, cancel)()
		report, err := doctor.Examine(ctx, t)
		for _, f := range report.Findings {
			all = append(all, console.Finding{Name: f.Name, Severity: severities[f.Severity], What: f.What, Means: f.Means, Do: f.Do})
		}
		if err != nil {
			err = secret.From(ctx).Error(err)
		}
		return all, err
	}
}
