package target

import (
	"context"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"
)

// LoadAWS returns the configuration of AWS. Credentials, and the region if it is
// empty, come from where the AWS command line finds them.
func LoadAWS(ctx context.Context, region string) (aws.Config, error) {
	return config.LoadDefaultConfig(ctx, func(o *config.LoadOptions) error {
		o.Region, o.Logger = region, logging.Nop{} // what goes wrong is in the errors
		return nil
	})
}

// IsTopicPrefix reports whether the ARNs of topics of SNS begin with a text, up to
// the name.
func IsTopicPrefix(text string) bool {
	return strings.HasPrefix(text, "arn:") && strings.Contains(text, ":sns:") && strings.HasSuffix(text, ":")
}
