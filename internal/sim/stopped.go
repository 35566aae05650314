package sim

import "time"

// IsStopped reports whether the process was told to stop, and will be started again.
func (p *Process) IsStopped() bool {
	return p.World.happened("STOPS", p.Name, p.World.begin, time.Now()) > 0
}

// Stop stops the process in order, as for a new version.
func (p *Process) Stop() {
	p.World.Tell(Line{Who: p.Name, What: "STOPS"})
	p.kill()
}
