package cluster

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Mark is the content of a commit of a partition: everything below Offset is
// settled, and nothing from Reach on was ever delivered. The last Gap offsets
// before Offset have no messages: they are control records of transactions, or were
// aborted or compacted away. The reach, the gap and the identity of the log are in
// the metadata of the commit. Log is empty if another program has committed. Offset
// is -1 if there is no commit.
type Mark struct {
	Offset, Reach int64
	Gap           int64
	Log           string
}

const metadata = "once"

// metadata has the gap, if there is one, in the word of the reach. Builds that do
// not know it take the commit for another program's, and lose nothing.
func (m Mark) metadata() string {
	reach := strconv.FormatInt(m.Reach, 10)
	if m.Gap > 0 {
		reach += "-" + strconv.FormatInt(m.Gap, 10)
	}
	return fmt.Sprintf("%s %s %s", metadata, reach, m.Log)
}

func parse(offset int64, text *string) Mark {
	m := Mark{Offset: offset, Reach: -1}
	if text == nil {
		return m
	}
	words := strings.SplitN(*text, " ", 3)
	if len(words) != 3 || words[0] != metadata {
		return m
	}
	before, after, has := strings.Cut(words[1], "-")
	if !has {
		after = "0"
	}
	reach, errReach := strconv.ParseInt(before, 10, 64)
	gap, errGap := strconv.ParseInt(after, 10, 64)
	if errReach == nil && errGap == nil && gap >= 0 && gap <= offset {
		m.Reach, m.Gap, m.Log = reach, gap, words[2]
	}
	return m
}

// Fetched returns the last commits of partitions. It skips partitions with an
// error.
func Fetched(resp *kmsg.OffsetFetchResponse) iter.Seq2[TopicPartition, Mark] {
	return func(yield func(TopicPartition, Mark) bool) {
		for _, group := range resp.Groups {
			for _, topic := range group.Topics {
				for _, at := range topic.Partitions {
					if at.ErrorCode == 0 && !yield(TopicPartition{topic.Topic, at.Partition}, parse(at.Offset, at.Metadata)) {
						return
					}
				}
			}
		}
	}
}

// Commit commits marks for the group of the client.
func Commit(ctx context.Context, client *kgo.Client, marks map[TopicPartition]Mark) (failed error) {
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	for at, m := range marks {
		if offsets[at.Topic] == nil {
			offsets[at.Topic] = make(map[int32]kgo.EpochOffset)
		}
		offsets[at.Topic][at.Number] = kgo.EpochOffset{Epoch: -1, Offset: m.Offset}
	}
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		for _, topic := range req.Topics {
			for i := range topic.Partitions {
				at := &topic.Partitions[i]
				at.Metadata = kmsg.StringPtr(marks[TopicPartition{topic.Topic, at.Partition}].metadata())
			}
		}
		return nil
	})
	client.CommitOffsetsSync(ctx, offsets,
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
			failed = commitError(resp, err)
		})
	return failed
}

func commitError(resp *kmsg.OffsetCommitResponse, err error) error {
	if err != nil {
		return err
	}
	for _, topic := range resp.Topics {
		for _, at := range topic.Partitions {
			if err := kerr.ErrorForCode(at.ErrorCode); err != nil {
				return fmt.Errorf("%s: %w", TopicPartition{topic.Topic, at.Partition}, err)
			}
		}
	}
	return nil
}
