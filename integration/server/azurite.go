//go:build linux

package server

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// azuritePackages name the version of Azurite, and the checksums of all packages
// that it consists of.
//
//go:embed azurite/package.json azurite/package-lock.json
var azuritePackages embed.FS

type azurite struct {
	node    string
	program string
	name    string // of the account
	key     string
}

// newAzurite has npm install Azurite, if it is not in the cache.
func newAzurite(ctx context.Context) (*azurite, error) {
	node, err := findProgram("node")
	if err != nil {
		return nil, err
	}
	dir, err := npmCache(ctx, azuritePackages, "azurite", "--omit=optional")
	if err != nil {
		return nil, fmt.Errorf("install Azurite: %w", err)
	}
	return &azurite{
		node:    node,
		program: filepath.Join(dir, "node_modules/azurite/dist/src/table/main.js"),
		name:    "once" + strings.ToLower(rand.Text()[:20]),
		key:     base64.StdEncoding.EncodeToString([]byte(rand.Text())),
	}, nil
}

func (*azurite) kind() Kind { return Azurite }

// account is one without files, because no Debian package creates one for it.
func (*azurite) account() string { return "nobody" }

func (e *azurite) prepare(_ context.Context, h *home) error {
	// A command line could be read by every account.
	h.env = append(h.env, "AZURITE_ACCOUNTS="+e.name+":"+e.key)
	return h.mkdir("data")
}

func (e *azurite) launch(h *home, port int) (*process, error) {
	return h.launch(syscall.SIGKILL, e.node, e.program, "--tableHost", "127.0.0.1", "--tablePort", fmt.Sprint(port),
		"--location", h.path("data"), "--disableTelemetry", "--silent")
}

// shutdown sends the only signal at which Azurite writes what it has in memory.
func (*azurite) shutdown(p *process) error { return p.cmd.Process.Signal(syscall.SIGINT) }

// dsn is a connection string for the clients of Azure.
func (e *azurite) dsn(port int) string {
	return fmt.Sprintf("DefaultEndpointsProtocol=http;AccountName=%s;AccountKey=%s;TableEndpoint=http://127.0.0.1:%d/%s;",
		e.name, e.key, port, e.name)
}

// identity is the account, whose name and key no other server knows.
func (e *azurite) identity(*home) string { return e.name }

// askIdentity asks for the tables. The answer has the account in its metadata.
func (e *azurite) askIdentity(ctx context.Context, dsn string) (string, error) {
	request, err := e.request(ctx, http.MethodGet, dsn, nil)
	if err != nil {
		return "", err
	}
	body, err := answer(request)
	if err != nil {
		return "", err
	}
	var tables struct {
		Metadata string `json:"odata.metadata"`
	}
	if err := json.Unmarshal(body, &tables); err != nil {
		return "", err
	}
	metadata, err := url.Parse(tables.Metadata)
	if err != nil {
		return "", err
	}
	account, _, _ := strings.Cut(strings.TrimPrefix(metadata.Path, "/"), "/")
	return account, nil
}

// request returns a signed request for the list of tables.
func (e *azurite) request(ctx context.Context, method, dsn string, body io.Reader) (*http.Request, error) {
	_, endpoint, _ := strings.Cut(strings.TrimSuffix(dsn, ";"), "TableEndpoint=")
	request, err := http.NewRequestWithContext(ctx, method, endpoint+"/Tables", body)
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC().Format(http.TimeFormat)
	request.Header.Set("Accept", "application/json;odata=minimalmetadata")
	request.Header.Set("x-ms-date", now)
	request.Header.Set("x-ms-version", "2019-02-02")
	request.Header.Set("Authorization", "SharedKeyLite "+e.name+":"+e.sign(now+"\n/"+e.name+request.URL.Path))
	return request, nil
}

// sign returns the signature of a request by the account's key.
func (e *azurite) sign(text string) string {
	key, err := base64.StdEncoding.DecodeString(e.key)
	if err != nil {
		panic(err) // newAzurite made it
	}
	sum := hmac.New(sha256.New, key)
	sum.Write([]byte(text))
	return base64.StdEncoding.EncodeToString(sum.Sum(nil))
}
