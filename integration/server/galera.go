//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
)

// galeraLibrary is where Debian's package galera-4 puts the replication.
const galeraLibrary = "/usr/lib/galera/libgalera_smm.so"

// galera is a MariaDB that is a node of a cluster.
type galera struct {
	*mariadb
	peers  []galeraPorts // of all nodes
	own    int           // which of them this is
	begins atomic.Bool   // its next start begins the cluster
}

// galeraPorts are the ports of a node on which other nodes reach it.
type galeraPorts struct{ group, missing, state int }

func (*galera) kind() Kind { return Galera }

// StartGalera starts a cluster of three nodes. The first one holds the cluster
// until the others have joined. The context limits only the start.
func StartGalera(ctx context.Context) (nodes []*Instance, err error) {
	if _, err := os.Stat(galeraLibrary); err != nil {
		return nil, fmt.Errorf("galera-4 is not installed: run the servers tool with -install: %w", err)
	}
	peers := make([]galeraPorts, 3)
	for i := range peers {
		for _, port := range []*int{&peers[i].group, &peers[i].missing, &peers[i].state} {
			if *port, err = FreePort(); err != nil {
				return nil, err
			}
		}
	}
	first, err := newMariaDB()
	if err != nil {
		return nil, err
	}
	for i := range peers {
		e := &galera{mariadb: first, peers: peers, own: i}
		e.begins.Store(i == 0)
		node, err := start(ctx, e, FreePort)
		if err != nil {
			for _, n := range nodes {
				err = errors.Join(err, n.Stop())
			}
			return nil, err
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

func (e *galera) launch(h *home, port int) (*process, error) {
	var group []string
	for i, p := range e.peers {
		if i != e.own {
			group = append(group, fmt.Sprintf("127.0.0.1:%d", p.group))
		}
	}
	own := e.peers[e.own]
	args := append(e.args(h, port), "--wsrep-on=ON", "--wsrep-provider="+galeraLibrary, "--wsrep-cluster-name=once",
		"--wsrep-node-address=127.0.0.1", fmt.Sprintf("--wsrep-node-name=node%d", e.own),
		"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-sst-method=rsync",
		fmt.Sprintf("--wsrep-sst-receive-address=127.0.0.1:%d", own.state),
		// A node that is killed is given up after seconds, and not after a minute.
		fmt.Sprintf("--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:%d;ist.recv_addr=127.0.0.1:%d;gcache.size=32M;"+
			"evs.suspect_timeout=PT2S;evs.inactive_timeout=PT4S;evs.keepalive_period=PT0.5S", own.group, own.missing))
	if e.begins.Swap(false) {
		args = append(args, "--wsrep-new-cluster", "--wsrep-cluster-address=gcomm://")
	} else {
		args = append(args, "--wsrep-cluster-address=gcomm://"+strings.Join(group, ","))
	}
	return h.launch(syscall.SIGKILL, e.program, args...)
}

func (e *galera) askIdentity(ctx context.Context, dsn string) (string, error) {
	db, err := openMariaDB(dsn)
	if err != nil {
		return "", err
	}
	defer db.Close()
	var name, state, dir string
	if err := db.QueryRowContext(ctx, "SHOW STATUS LIKE 'wsrep_local_state_comment'").Scan(&name, &state); err != nil {
		return "", err
	}
	if state != "Synced" {
		return "", fmt.Errorf("the node is %s", state)
	}
	err = db.QueryRowContext(ctx, "SELECT @@datadir").Scan(&dir)
	return filepath.Clean(dir), err
}
