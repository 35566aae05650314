package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"
)

// verdict has the counted effects.
type verdict struct {
	story        story
	charges      int
	reservations int
	points       int
	letters      map[string]int // by order
	unsent       int            // parked letters that were not sent
	counted      int
	countedOnce  int
	parked       []string
	published    int
}

// complete reports whether every order is complete or parked.
func (v *verdict) complete() bool {
	n := v.story.orders
	return v.charges >= n && v.reservations >= n && v.points >= 10*n && len(v.letters)+v.unsent >= n && v.countedOnce >= n
}

func (v *verdict) holds() bool {
	n := v.story.orders
	return v.published > n && v.charges == n && v.reservations == n && v.points == 10*n && v.twice() == 0
}

// twice returns the number of customers with more than one letter.
func (v *verdict) twice() (n int) {
	for _, letters := range v.letters {
		if letters > 1 {
			n++
		}
	}
	return n
}

func (v *verdict) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	n := v.story.orders
	fmt.Fprintf(w, "%d orders, published %d times; the consumers were killed %d times\n\n", n, v.published, v.story.kills)
	fmt.Fprintf(w, "consumer\tprotection\twanted\tfound\n")
	fmt.Fprintf(w, "payment\tinbox.Do, Resend: the bank knows the key\t%d charges\t%d\n", n, v.charges)
	fmt.Fprintf(w, "fulfilment\tinbox.Tx, and a unique row\t%d reservations\t%d\n", n, v.reservations)
	fmt.Fprintf(w, "loyalty\tinbox.Tx\t%d points\t%d\n", 10*n, v.points)
	fmt.Fprintf(w, "mail\tinbox.Do, Park\tat most one letter each\t%d sent, %d twice; %d parked, of which %d were not sent\n",
		len(v.letters), v.twice(), len(v.parked), v.unsent)
	fmt.Fprintf(w, "analytics\tnone, on purpose\t%d, or a few more\t%d\n", n, v.counted)
	_ = w.Flush()
	if len(v.parked) > 0 {
		fmt.Fprintf(&b, "\nParked, for a person to look into the mail server, and then to Replay or Discard:\n  %s\n", strings.Join(v.parked, "\n  "))
	}
	return b.String()
}

// letters reads the files of the mail server.
func letters(file string) (map[string]int, error) {
	sent := make(map[string]int)
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return sent, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		sent[lines.Text()]++
	}
	return sent, lines.Err()
}
