//go:build linux

package server

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/effectively-once/once/internal/testenv"
)

// needAzurite skips a test unless the tool was asked for an Azurite: it is then
// installed.
func needAzurite(t *testing.T) {
	t.Helper()
	testenv.Azurite(t)
	need(t, Azurite)
}

func TestAnAzuriteIsKnownByItsAccount(t *testing.T) {
	needAzurite(t)
	i := started(t)(StartAzurite(t.Context()))
	e := i.engine.(*azurite)
	stranger := *e
	stranger.key = base64.StdEncoding.EncodeToString([]byte("another"))
	if got, err := stranger.askIdentity(t.Context(), i.DSN()); err == nil {
		t.Errorf("a request with another key was answered: %q", got)
	}
	other := started(t)(StartAzurite(t.Context()))
	if got, err := e.askIdentity(t.Context(), strings.ReplaceAll(other.DSN(), other.Identity(), i.Identity())); err == nil {
		t.Errorf("another server answered to our account: %q", got)
	}
}

func TestAzuriteKeepsItsTablesOverARestart(t *testing.T) {
	needAzurite(t)
	i := started(t)(StartAzurite(t.Context()))
	address := i.Addr()
	create := func() int {
		e := i.engine.(*azurite)
		request, err := e.request(t.Context(), http.MethodPost, i.DSN(), strings.NewReader(`{"TableName":"kept"}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	if code := create(); code != http.StatusCreated {
		t.Fatal("the table was not created:", code)
	}
	if err := i.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code := create(); code != http.StatusConflict || i.Addr() != address {
		t.Error(fmt.Sprint("after a restart, the table is created again: ", code, ", on ", i.Addr()))
	}
}
