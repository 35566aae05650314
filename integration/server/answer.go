//go:build linux

package server

import (
	"fmt"
	"io"
	"net/http"
)

// answer returns the body of the answer to a request, which has to succeed.
func answer(request *http.Request) ([]byte, error) {
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer to %s %s is %s: %s", request.Method, request.URL.Path, response.Status, body)
	}
	return body, nil
}
