package pgstore

import "testing"

func TestAChannelNameFitsItsLimit(t *testing.T) {
	long := `"a_schema_with_a_name_that_is_quite_long"."a_prefix_of_thirty_two_letters__outbox"`
	for table, want := range map[string]string{
		`"public"."once_outbox"`: "public.once_outbox",
		`public."once_outbox"`:   "public.once_outbox",
	} {
		if got := channelOf(table); got != want {
			t.Errorf("the channel of %s is %s, want %s", table, got, want)
		}
	}
	if got := channelOf(long); len(got) > longestChannel || got == channelOf(long+"2") {
		t.Errorf("the channel of a long name is %s", got)
	}
}
