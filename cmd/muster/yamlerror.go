package main

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

var (
	unknownField = regexp.MustCompile(`^(line \d+: )field (.+) not found in type (\S+)$`)
	wrongType    = regexp.MustCompile(`^(line \d+: )cannot unmarshal !!(\w+)(.*) into (\S+)$`)
)

// plainYAML says what is wrong with a file in the words of the file: its fields,
// not the types that they are read into.
func plainYAML(err error) error {
	typed := (*yaml.TypeError)(nil)
	if !errors.As(err, &typed) {
		return err
	}
	faults := make([]string, len(typed.Errors))
	for i, text := range typed.Errors {
		faults[i] = text
		if m := unknownField.FindStringSubmatch(text); m != nil {
			faults[i] = fmt.Sprintf("%sfield %s is not known; known are %s", m[1], m[2], strings.Join(yamlFields[m[3]], ", "))
		} else if m := wrongType.FindStringSubmatch(text); m != nil {
			faults[i] = fmt.Sprintf("%sthis is %s%s; want %s", m[1], yamlWord(m[2]), m[3], wantedWord(m[4]))
		}
	}
	return errors.New(strings.Join(faults, "; "))
}

// yamlFields are those of the mappings in a folder, by the type that they are
// read into.
var yamlFields = func() map[string][]string {
	fields := map[string][]string{}
	for _, t := range []reflect.Type{
		reflect.TypeFor[configFile](), reflect.TypeFor[groupBody](), reflect.TypeFor[scopes](), reflect.TypeFor[fileSpec](), reflect.TypeFor[rollout](),
	} {
		for f := range t.NumField() {
			if name, _, _ := strings.Cut(t.Field(f).Tag.Get("yaml"), ","); name != "" {
				fields[t.String()] = append(fields[t.String()], name)
			}
		}
	}
	return fields
}()

// yamlWord is a tag as people say it.
func yamlWord(tag string) string {
	switch tag {
	case "map":
		return "a mapping"
	case "seq":
		return "a list"
	case "str":
		return "a text"
	case "bool":
		return "true or false"
	case "int", "float":
		return "a number"
	}
	return tag
}

func wantedWord(goType string) string {
	goType = strings.TrimPrefix(goType, "*")
	if of, isList := strings.CutPrefix(goType, "[]"); isList {
		return "a list, each of it " + wantedWord(of)
	}
	if fields := yamlFields[goType]; fields != nil {
		return "a mapping of " + strings.Join(fields, ", ")
	}
	switch goType {
	case "bool":
		return "true or false"
	case "string":
		return "a text"
	}
	return "a number"
}
