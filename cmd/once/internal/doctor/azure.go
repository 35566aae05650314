package doctor

import (
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
)

// signature is the user of a URL whose password is a shared access signature, and
// not a key. Connection strings call it that, too.
const signature = "SharedAccessSignature"

// azureNamespace returns the connection string of a namespace of Event Hubs or
// Service Bus, or else the credentials of the environment.
func azureNamespace(a address) (connection string, credential azcore.TokenCredential, err error) {
	if len(a.hosts) != 1 {
		return "", nil, refuse("give one host, which is the namespace, such as shop.servicebus.windows.net")
	}
	if !a.signed {
		credential, err = azidentity.NewDefaultAzureCredential(nil)
		return "", credential, err
	}
	if a.user == "" || a.password == "" || strings.ContainsAny(a.user+a.password, ";") {
		return "", nil, refuse("before the @, give the name of a shared access key and the key, or nothing for the credentials of the environment")
	}
	connection = "Endpoint=sb://" + a.hosts[0] + "/;"
	if a.user == signature {
		return connection + "SharedAccessSignature=" + a.password, nil, nil
	}
	return connection + "SharedAccessKeyName=" + a.user + ";SharedAccessKey=" + a.password, nil, nil
}
