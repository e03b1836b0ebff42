package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/musterhq/muster/coordinator/store"
)

// domain goes with every stable reason.
const domain = "muster"

// maxFaults is how many faults of a request are told: they travel in the trailer
// of the answer.
const maxFaults = 20

// faults collects what is wrong with a request, by field: the first maxFaults.
type faults struct {
	list []*errdetails.BadRequest_FieldViolation
}

func (f *faults) full() bool { return len(f.list) == maxFaults }

func (f *faults) add(field, format string, args ...any) {
	if f.full() {
		return
	}
	f.list = append(f.list, &errdetails.BadRequest_FieldViolation{Field: field, Description: fmt.Sprintf(format, args...)})
}

func (f *faults) err() error {
	if len(f.list) == 0 {
		return nil
	}
	msg := f.list[0].Field + ": " + f.list[0].Description
	return fail(codes.InvalidArgument, "INVALID_FIELD", msg, &errdetails.BadRequest{FieldViolations: f.list})
}

func invalid(field, format string, args ...any) error {
	var f faults
	f.add(field, format, args...)
	return f.err()
}

func notFound(kind, id string) error {
	return fail(codes.NotFound, "NOT_FOUND", fmt.Sprintf("%s %.150q is not known", kind, id))
}

// noTargets is for a selector that is right and selects nobody.
func noTargets(field, msg string) error {
	v := &errdetails.BadRequest_FieldViolation{Field: field, Description: msg}
	return fail(codes.InvalidArgument, "NO_TARGETS", field+": "+msg, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{v}})
}

// unknownAgents names the listed agents that nobody knows.
func unknownAgents(listed, unknown []string) error {
	f := &faults{}
	for _, id := range unknown[:min(len(unknown), maxFaults)] {
		f.add(fmt.Sprintf("target.agents[%d]", slices.Index(listed, id)), "agent %q is not known", id)
	}
	return f.err()
}

// fail makes an error with a stable reason that travels to operators as it is.
func fail(code codes.Code, reason, msg string, details ...protoadapt.MessageV1) error {
	s := status.New(code, msg)
	details = append(details, &errdetails.ErrorInfo{Reason: reason, Domain: domain})
	full, err := s.WithDetails(details...)
	if err != nil {
		return s.Err()
	}
	return full.Err()
}

// toStatus is the one place that says what a store error is for an operator.
// What it does not know is INTERNAL and keeps its words to the log.
func toStatus(err error) error {
	switch {
	case err == nil:
		return nil
	case isStatus(err):
		return err
	case errors.Is(err, store.ErrConflict):
		return fail(codes.Aborted, "CONFLICT", "somebody else changed it at the same time; read it again")
	case errors.Is(err, store.ErrUnavailable) && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)):
		return fail(codes.ResourceExhausted, "DISK_FULL", "the coordinator's disk is full; nothing was done: "+err.Error())
	case errors.Is(err, store.ErrUnavailable):
		return fail(codes.Unavailable, "STORE_UNAVAILABLE", "the store cannot be written; nothing was done: "+err.Error())
	case errors.Is(err, store.ErrUnknown):
		return fail(codes.Unavailable, "STORE_UNKNOWN", "the store did not say whether it was written; look before trying again")
	case errors.Is(err, context.Canceled):
		return fail(codes.Canceled, "CANCELLED", "the request was given up")
	case errors.Is(err, context.DeadlineExceeded):
		return fail(codes.DeadlineExceeded, "DEADLINE", "the request took too long")
	default:
		return fail(codes.Internal, "INTERNAL", "internal error")
	}
}

func isStatus(err error) bool {
	_, ok := status.FromError(err)
	return ok
}
