// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Store persists the last configuration of a proxy in a file. A proxy that restarts while the controller is
// unreachable serves this configuration. The file contains private keys and should be on a memory-backed
// volume.
//
// The file is a journal of the complete configuration and subsequent changes, so that the cost of saving a
// change is proportional to its size. The file is rewritten when the changes reach a quarter of the size of
// the complete configuration.
type Store struct {
	Path string

	// journal is the file opened for appending changes; nil requires a rewrite.
	journal        *os.File
	whole, changes int64
}

const (
	// magic is the beginning of the file. Its last digit is the format version.
	magic = "millrace-proxy-1\n"
	// minChanges is the minimum size of the changes, in bytes, that causes a rewrite.
	minChanges = 1 << 20
	// maxRecord is the maximum size of an appended change in bytes. A larger change causes a rewrite.
	maxRecord = 64 << 20
)

// recordHeader is the size of a record header: length and CRC-32C checksum, four bytes each in big-endian
// order.
const recordHeader = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errTorn is returned for an incomplete last record, which a crash can leave.
var errTorn = errors.New("the last record is incomplete")

// Load calls take for each saved message: first the complete configuration, then the changes. An incomplete
// last record is ignored. A missing file is not an error.
func (s *Store) Load(take func(*discovery.DeltaDiscoveryResponse) error) error {
	content, err := os.ReadFile(s.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	rest, known := bytes.CutPrefix(content, []byte(magic))
	if !known {
		return fmt.Errorf("read %s: it is not a configuration of this version", s.Path)
	}
	for len(rest) > 0 {
		record, after, err := cutRecord(rest)
		if errors.Is(err, errTorn) {
			return nil
		}
		part := &discovery.DeltaDiscoveryResponse{}
		if err == nil {
			err = proto.Unmarshal(record, part)
		}
		if err == nil {
			err = take(part)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", s.Path, err)
		}
		rest = after
	}
	return nil
}

func cutRecord(content []byte) (record, rest []byte, err error) {
	if len(content) < recordHeader {
		return nil, nil, errTorn
	}
	length, sum := binary.BigEndian.Uint32(content), binary.BigEndian.Uint32(content[4:])
	content = content[recordHeader:]
	if int64(length) > int64(len(content)) {
		return nil, nil, errTorn
	}
	record, rest = content[:length], content[length:]
	if crc32.Checksum(record, castagnoli) != sum {
		if len(rest) == 0 {
			return nil, nil, errTorn
		}
		return nil, nil, errors.New("checksum mismatch")
	}
	return record, rest, nil
}

// Save persists a change; all is the configuration that includes it. After an error the file may be invalid,
// and the next call rewrites it.
func (s *Store) Save(change Update, all map[string]received) error {
	if s.journal == nil || s.changes > max(minChanges, s.whole/4) {
		return s.rewrite(change.Version, all)
	}
	message := &discovery.DeltaDiscoveryResponse{SystemVersionInfo: change.Version, RemovedResources: change.Removed}
	var err error
	for _, r := range change.Changed {
		packed := &discovery.Resource{Resource: &anypb.Any{}}
		if err = pack(packed, r, all[r.GetName()].version); err != nil {
			break
		}
		message.Resources = append(message.Resources, packed)
	}
	if proto.Size(message) > maxRecord {
		return s.rewrite(change.Version, all)
	}
	if err == nil {
		var buffer []byte
		var written int64
		written, err = writeRecord(s.journal, &buffer, message)
		s.changes += written
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("add to %s: %w", s.Path, err), s.journal.Close())
		s.journal = nil
	}
	return err
}

func pack(into *discovery.Resource, r *resource.Resource, version string) (err error) {
	into.Name, into.Version, into.Resource.TypeUrl = r.GetName(), version, TypeURL
	if into.Resource.Value, err = (proto.MarshalOptions{}).MarshalAppend(into.Resource.Value[:0], r); err != nil {
		return fmt.Errorf("write the resource %q: %w", r.GetName(), err)
	}
	return nil
}

func (s *Store) rewrite(version string, all map[string]received) error {
	if s.journal != nil {
		_ = s.journal.Close()
		s.journal = nil
	}
	file, err := os.CreateTemp(filepath.Dir(s.Path), filepath.Base(s.Path)+".new-*")
	if err != nil {
		return err
	}
	if s.whole, err = writeAll(file, version, all); err == nil {
		err = os.Rename(file.Name(), s.Path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("replace %s: %w", s.Path, err), file.Close(), os.Remove(file.Name()))
	}
	s.journal, s.changes = file, 0
	return nil
}

// writeAll writes a complete configuration with one record per resource, which avoids a second copy in
// memory.
func writeAll(file io.Writer, version string, all map[string]received) (length int64, err error) {
	buffered := bufio.NewWriter(file)
	if _, err := buffered.WriteString(magic); err != nil {
		return 0, err
	}
	one := &discovery.Resource{Resource: &anypb.Any{}}
	part := &discovery.DeltaDiscoveryResponse{Resources: []*discovery.Resource{one}}
	var buffer []byte
	for _, known := range all {
		if err := pack(one, known.resource, known.version); err != nil {
			return 0, err
		}
		written, err := writeRecord(buffered, &buffer, part)
		if err != nil {
			return 0, err
		}
		length += written
	}
	// The version is written last, so that a file without a version is recognized as incomplete.
	if _, err := writeRecord(buffered, &buffer, &discovery.DeltaDiscoveryResponse{SystemVersionInfo: version}); err != nil {
		return 0, err
	}
	return length, buffered.Flush()
}

// writeRecord writes a message as a record, reusing the buffer. A failed write leaves an incomplete record.
func writeRecord(to io.Writer, buffer *[]byte, message *discovery.DeltaDiscoveryResponse) (int64, error) {
	var header [recordHeader]byte
	record, err := proto.MarshalOptions{}.MarshalAppend(append((*buffer)[:0], header[:]...), message)
	if err != nil {
		return 0, err
	}
	*buffer = record
	binary.BigEndian.PutUint32(record, uint32(len(record)-recordHeader))
	binary.BigEndian.PutUint32(record[4:], crc32.Checksum(record[recordHeader:], castagnoli))
	written, err := to.Write(record)
	return int64(written), err
}
