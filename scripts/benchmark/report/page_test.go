package report

import "testing"

func TestSectionIsAddedAndReplaced(t *testing.T) {
	page := replace("# Head\n", "bus", "one")
	page = replace(page, "commands", "two")
	page = replace(page, "bus", "three\n")
	want := "# Head\n\n<!-- begin bus -->\nthree\n<!-- end bus -->\n\n<!-- begin commands -->\ntwo\n<!-- end commands -->\n"
	if page != want {
		t.Errorf("page is %q, want %q", page, want)
	}
}
