package doctor

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

func dynamoTable(ctx context.Context, e *examination) error {
	out, err := e.Dynamo.Client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &e.Dynamo.Table})
	if err != nil {
		return err
	}
	if status := out.Table.TableStatus; status != types.TableStatusActive && status != types.TableStatusUpdating {
		e.found("table-status", Unsafe, fmt.Sprintf("The table %s is %s.", e.Dynamo.Table, status), "Calls fail.",
			"Wait until it is active, or find out who is changing it.")
	}
	if n := len(out.Table.Replicas); n > 0 {
		e.found("table-replicas", Warning, fmt.Sprintf("The table %s is replicated to other Regions (%d).", e.Dynamo.Table, n),
			"Replicas accept writes that contradict each other. Work whose key was claimed in another Region may run again.",
			"Let programs write in one Region only, also after a failover.")
	}
	indexed := false
	for _, index := range out.Table.GlobalSecondaryIndexes {
		indexed = indexed || aws.ToString(index.IndexName) == e.Dynamo.Index
	}
	if !indexed {
		e.found("index-missing", Warning, fmt.Sprintf("The table %s has no index %s.", e.Dynamo.Table, e.Dynamo.Index),
			"Keys that are unknown or parked cannot be listed, and no reconciler finds them.",
			"Add the index that dynamostore.Template prints, or give its name in the parameter index.")
	}
	return nil
}

func dynamoExpiry(ctx context.Context, e *examination) error {
	out, err := e.Dynamo.Client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &e.Dynamo.Table})
	if err != nil {
		return err
	}
	of := out.TimeToLiveDescription
	on := of != nil && (of.TimeToLiveStatus == types.TimeToLiveStatusEnabled || of.TimeToLiveStatus == types.TimeToLiveStatusEnabling)
	if !on || aws.ToString(of.AttributeName) != e.Dynamo.Expiry {
		e.found("expiry-off", Warning, fmt.Sprintf("The table %s does not delete items by the attribute %s.", e.Dynamo.Table, e.Dynamo.Expiry),
			"Keys that are past their KeepKey stay. The table keeps growing.",
			"Switch on time to live for this attribute, or give its name in the parameter expiry.")
	}
	return nil
}

func dynamoBackups(ctx context.Context, e *examination) error {
	out, err := e.Dynamo.Client.DescribeContinuousBackups(ctx, &dynamodb.DescribeContinuousBackupsInput{TableName: &e.Dynamo.Table})
	if err != nil {
		return err
	}
	if of := out.ContinuousBackupsDescription; of == nil || of.PointInTimeRecoveryDescription == nil ||
		of.PointInTimeRecoveryDescription.PointInTimeRecoveryStatus != types.PointInTimeRecoveryStatusEnabled {
		e.found("recovery-off", Note, "Point-in-time recovery of the table "+e.Dynamo.Table+" is off.",
			"If somebody deletes keys, their work may run again, and nothing says which.", "Switch it on.")
	}
	return nil
}
