package offices

import (
	"net"
	"testing"

	"github.com/effectively-once/once/integration/internal/proof"
)

// TestAServerStartsWhenItsPortIsFreeAgain holds the port of a stopped server, as
// a child does that was just forked.
func TestAServerStartsWhenItsPortIsFreeAgain(t *testing.T) {
	s := StartNATS(t)
	s.Stop()
	var held net.Listener
	OnItsPort(t, func() (err error) {
		held, err = net.Listen("tcp4", s.URL()[len("nats://"):])
		return err
	})
	attempts := 0
	OnItsPort(t, func() error {
		err := s.start()
		if attempts++; attempts == 2 {
			proof.Must(t, held.Close())
		}
		return err
	})
	if attempts < 3 {
		t.Errorf("the server started in attempt %d, while its port was taken", attempts)
	}
	js, err := DialNATS(s.URL())
	proof.Must(t, err)
	defer js.Conn().Close()
	if _, err := js.AccountInfo(proof.Soon(t)); err != nil {
		t.Errorf("the server does not answer: %v", err)
	}
}
