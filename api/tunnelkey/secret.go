// SPDX-License-Identifier: Apache-2.0

package tunnelkey

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/api/flowhash"
)

// Names of entries in the Secret's data. The keys are in entries "key-1", "key-2" and so on.
const (
	entryPhase    = "phase"
	entrySending  = "sending"
	entryRequired = "required"
	entrySince    = "since"
	entryMade     = "made"
	prefixKey     = "key-"
	// entrySeed is the optional seed of the flow hash.
	entrySeed = "flow-seed"
)

// Data encodes the State as the data of a Secret.
func (s *State) Data() map[string][]byte {
	data := map[string][]byte{
		entryPhase:    []byte(s.Phase),
		entrySending:  strconv.AppendUint(nil, uint64(s.Sending), 10),
		entryRequired: strconv.AppendBool(nil, s.Required),
		entrySince:    s.Since.UTC().AppendFormat(nil, time.RFC3339),
		entryMade:     s.Made.UTC().AppendFormat(nil, time.RFC3339),
	}
	for _, key := range s.Accepted {
		data[prefixKey+strconv.FormatUint(uint64(key.Generation), 10)] = slices.Clone(key.Secret[:])
	}
	if s.Seed != (flowhash.Seed{}) {
		data[entrySeed] = slices.Clone(s.Seed[:])
	}
	return data
}

// Parse decodes the data of a Secret. It ignores unknown entries, and its errors do not contain secrets.
func Parse(data map[string][]byte) (*State, error) {
	state := &State{Phase: Phase(data[entryPhase])}
	var errs []error
	switch state.Phase {
	case Steady, Publishing, Switching:
	default:
		errs = append(errs, fmt.Errorf("%s must be %s, %s or %s", entryPhase, Steady, Publishing, Switching))
	}
	var err error
	if state.Sending, err = generation(string(data[entrySending])); err != nil {
		errs = append(errs, fmt.Errorf("%s must be a key number", entrySending))
	}
	if state.Required, err = strconv.ParseBool(string(data[entryRequired])); err != nil {
		errs = append(errs, fmt.Errorf("%s must be true or false", entryRequired))
	}
	for entry, at := range map[string]*time.Time{entrySince: &state.Since, entryMade: &state.Made} {
		if *at, err = time.Parse(time.RFC3339, string(data[entry])); err != nil {
			errs = append(errs, fmt.Errorf("%s must be a time (RFC 3339)", entry))
		}
	}
	switch seed, found := data[entrySeed]; {
	case !found:
	case len(seed) != flowhash.SeedSize:
		errs = append(errs, fmt.Errorf("%s has %d bytes, must have %d", entrySeed, len(seed), flowhash.SeedSize))
	default:
		state.Seed = flowhash.Seed(seed)
	}
	errs = append(errs, state.parseKeys(data))
	if _, ok := state.Key(state.Sending); !ok && (state.Sending != 0 || state.Phase != Publishing) {
		errs = append(errs, fmt.Errorf("%s refers to a key that is not in the Secret", entrySending))
	}
	if err := errors.Join(errs...); err != nil {
		lines := strings.Split(err.Error(), "\n")
		slices.Sort(lines)
		return nil, errors.New(strings.Join(lines, "; "))
	}
	return state, nil
}

func (s *State) parseKeys(data map[string][]byte) error {
	var errs []error
	for entry, secret := range data {
		number, ok := strings.CutPrefix(entry, prefixKey)
		if !ok {
			continue
		}
		n, err := generation(number)
		switch {
		case err != nil || n == 0 || number != strconv.FormatUint(uint64(n), 10):
			errs = append(errs, fmt.Errorf("%q has no key number", entry))
		case len(secret) != Size:
			errs = append(errs, fmt.Errorf("%s has %d bytes, must have %d", entry, len(secret), Size))
		case [Size]byte(secret) == [Size]byte{}:
			errs = append(errs, fmt.Errorf("%s is all zeros", entry))
		default:
			s.Accepted = append(s.Accepted, Key{n, [Size]byte(secret)})
		}
	}
	slices.SortFunc(s.Accepted, func(a, b Key) int { return int(int64(a.Generation) - int64(b.Generation)) })
	if len(errs) == 0 && (len(s.Accepted) == 0 || len(s.Accepted) > 2) {
		errs = append(errs, fmt.Errorf("there are %d keys, must be 1 or 2", len(s.Accepted)))
	}
	return errors.Join(errs...)
}

func generation(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err
}
