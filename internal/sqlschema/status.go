package sqlschema

import "context"

// Version is the version of the tables, 0 for none, and the oldest that a build may know to work with them.
func (n Names) Version(ctx context.Context, x Executor) (version, compatible int, err error) {
	at, err := n.installed(ctx, x)
	return at.version, at.compatible, err
}

// HasPartitions tells by their version whether tables have partitions.
func HasPartitions(version int) bool { return version > partitionedFrom }

// Prefix is what the names of all tables begin with.
func (n Names) Prefix() string { return n.prefix }

// Named is the table with this name behind the prefix, as SQL.
func (n Names) Named(name string) string { return n.table(name) }

// Database is the MySQL database of the tables, as SQL.
func (n Names) Database() string { return n.database() }
