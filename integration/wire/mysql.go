package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// MySQL is the protocol of MySQL 4.1 and newer, and of MariaDB.
var MySQL = Protocol{begin: func() conversation { return &mysql{prepared: map[uint32]string{}} }}

type mysql struct {
	mu       sync.Mutex
	modern   bool              // rows end with an OK packet instead of an EOF packet
	prepared map[uint32]string // SQL by the number of its statement
	commands []*command        // not answered yet, oldest first
}

// command is a command without a complete answer.
type command struct {
	kind, text string
	packets    int // of the answer, so far
	left       int // Prepare: packets that still belong to the answer
	ends       int // Query, Execute: ends of columns or rows that still belong to the answer; 0: not known
}

const (
	okPacket, eofPacket, errPacket = 0x00, 0xfe, 0xff

	compressFlag, sslFlag, modernFlag = 1 << 5, 1 << 11, 1 << 24

	moreResults = 8 // of the status flags

	wholePacket = 1<<24 - 1 // the next packet continues one of this size
)

var mysqlKinds = map[byte]string{1: "Quit", 2: "InitDB", 3: "Query", 14: "Ping", 17: "ChangeUser", 22: "Prepare", 23: "Execute",
	24: "LongData", 25: "Close", 26: "ResetStatement", 31: "ResetConnection"}

// unanswered are the commands that a server does not answer.
var unanswered = map[string]bool{"Quit": true, "LongData": true, "Close": true}

func (c *mysql) request(client *bufio.Reader) (Request, error) {
	raw, sequence, err := packet(client)
	if err != nil {
		return Request{}, err
	}
	body := raw[4:]
	if sequence > 0 {
		return c.login(raw)
	}
	if len(body) == 0 {
		return Request{}, errors.New("a command without a byte: this is not MySQL")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := mysqlKinds[body[0]]
	m := Message{Kind: kind, Text: c.text(kind, body[1:])}
	if !unanswered[kind] {
		c.commands = append(c.commands, &command{kind: kind, text: m.Text})
	}
	return Request{Messages: []Message{m}, raw: raw, answered: !unanswered[kind]}, nil
}

func (c *mysql) text(kind string, body []byte) string {
	switch kind {
	case "Query", "Prepare":
		return string(body)
	case "Execute", "Close", "LongData", "ResetStatement":
		if len(body) >= 4 {
			return c.prepared[binary.LittleEndian.Uint32(body)]
		}
	}
	return ""
}

// login is the client's answer to the greeting, or a later message of the
// login, which has no answer of its own.
func (c *mysql) login(raw []byte) (Request, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	req := Request{Messages: []Message{{Kind: "Login"}}, raw: raw}
	if len(c.commands) > 0 {
		return req, nil
	}
	if len(raw) < 8 {
		return req, errors.New("a login that is too short: this is not MySQL")
	}
	flags := binary.LittleEndian.Uint32(raw[4:])
	if flags&(sslFlag|compressFlag) != 0 {
		return req, errors.New("the client wants TLS or compression, which this proxy cannot read")
	}
	c.modern = flags&modernFlag != 0
	c.commands = append(c.commands, &command{kind: "Login"})
	return req, nil
}

func (c *mysql) reply(server *bufio.Reader) ([]byte, bool, error) {
	raw, _, err := packet(server)
	if err != nil || len(raw) == 4 {
		return raw, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.commands) == 0 { // the greeting
		return raw, false, nil
	}
	last := c.isLast(c.commands[0], raw[4:])
	if last {
		c.commands = c.commands[1:]
	}
	return raw, last, nil
}

// isLast reports whether the answer to the command is complete with this
// packet.
func (c *mysql) isLast(cmd *command, body []byte) bool {
	cmd.packets++
	if body[0] == errPacket {
		return true
	}
	switch cmd.kind {
	case "Login":
		return body[0] == okPacket
	case "Prepare":
		return c.prepareEnds(cmd, body)
	case "Query", "Execute":
		return c.resultEnds(cmd, body)
	default:
		return true
	}
}

// prepareEnds reports whether the answer to Prepare is complete. Its first
// packet says how many parameters and columns follow. Each kind has an end of
// its own.
func (c *mysql) prepareEnds(cmd *command, body []byte) bool {
	if cmd.packets > 1 {
		cmd.left--
		return cmd.left == 0
	}
	if len(body) < 9 {
		return true
	}
	c.prepared[binary.LittleEndian.Uint32(body[1:])] = cmd.text
	for _, n := range []int{int(binary.LittleEndian.Uint16(body[5:])), int(binary.LittleEndian.Uint16(body[7:]))} {
		cmd.left += n
		if n > 0 && !c.modern {
			cmd.left++
		}
	}
	return cmd.left == 0
}

// resultEnds reports whether the answer to a query is complete: one or more OK
// packets or sets of rows.
func (c *mysql) resultEnds(cmd *command, body []byte) bool {
	isEnd := body[0] == eofPacket && len(body) < wholePacket
	switch {
	case cmd.ends == 0 && body[0] == okPacket:
		return !moreFollows(body, true)
	case cmd.ends == 0: // the number of columns
		cmd.ends = 2
		if c.modern {
			cmd.ends = 1
		}
		return false
	case !isEnd:
		return false
	}
	cmd.ends--
	return cmd.ends == 0 && !moreFollows(body, c.modern)
}

// moreFollows reads the status flags of an OK packet, or of an EOF packet.
func moreFollows(body []byte, isOK bool) bool {
	at := 3
	if isOK {
		at = 1
		at += lengthOfNumber(body, at) // the rows changed
		at += lengthOfNumber(body, at) // the last id
	}
	return at+1 < len(body) && binary.LittleEndian.Uint16(body[at:])&moreResults != 0
}

// lengthOfNumber returns the size of a length-encoded integer.
func lengthOfNumber(body []byte, at int) int {
	if at >= len(body) {
		return 0
	}
	switch body[at] {
	case 0xfc:
		return 3
	case 0xfd:
		return 4
	case 0xfe:
		return 9
	default:
		return 1
	}
}

// packet reads a packet with its header.
func packet(r *bufio.Reader) (raw []byte, sequence byte, err error) {
	head, err := r.Peek(4)
	if err != nil {
		return nil, 0, err
	}
	length := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	if length == wholePacket {
		return nil, 0, fmt.Errorf("a packet of %d bytes or more, which this proxy does not put together", length)
	}
	sequence = head[3]
	raw = make([]byte, 4+length)
	_, err = io.ReadFull(r, raw)
	return raw, sequence, err
}
