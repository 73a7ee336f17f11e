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

// Store keeps a proxy's last configuration in a file, so that a proxy that restarts while no
// controller answers serves as before. It holds private keys: the directory belongs on a
// memory-backed volume of the pod.
//
// The file is a journal: the whole configuration, then each change. So to keep a change costs
// as much as the change. When the changes are a quarter of the whole, it is written again.
type Store struct {
	// Path of the file; its directory must exist.
	Path string

	// file is what changes are added to; nil: the whole has to be written first.
	file *os.File
	// whole and changes are the bytes of both parts.
	whole, changes int64
}

const (
	// magic begins the file. Its last character is the version of the format.
	magic = "millrace-proxy-1\n"
	// minChanges is how many bytes of changes are not worth to write the whole again.
	minChanges = 1 << 20
	// maxRecord is the longest change that is added. A longer one is written with the whole, in
	// many records.
	maxRecord = 64 << 20
)

// recordHeader is what stands before each message of the journal: its length and its checksum
// (CRC-32C), big endian, four bytes each.
const recordHeader = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errTorn is the end of a journal that a crash has left: what comes before it counts.
var errTorn = errors.New("the last record is incomplete")

// Load calls take with what was saved, in order: parts of the whole, then changes; each may
// remove what came before. Where a crash has left the last record incomplete, it is left out.
// Nothing is taken where nothing was saved.
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

// cutRecord returns the first record.
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
		return nil, nil, errors.New("a checksum is wrong")
	}
	return record, rest, nil
}

// Save keeps a change; all is the configuration with the change. After an error the previous
// content may be lost; the next call writes the whole.
func (s *Store) Save(change Update, all map[string]held) error {
	if s.file == nil || s.changes > max(minChanges, s.whole/4) {
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
		written, err = writeRecord(s.file, &buffer, message)
		s.changes += written
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("add to %s: %w", s.Path, err), s.file.Close())
		s.file = nil
	}
	return err
}

// pack fills a message with a resource, by way of the bytes that it has.
func pack(into *discovery.Resource, r *resource.Resource, version string) (err error) {
	into.Name, into.Version, into.Resource.TypeUrl = r.GetName(), version, TypeURL
	if into.Resource.Value, err = (proto.MarshalOptions{}).MarshalAppend(into.Resource.Value[:0], r); err != nil {
		return fmt.Errorf("write the resource %q: %w", r.GetName(), err)
	}
	return nil
}

// rewrite replaces the file. A crash leaves either the former or the new content.
func (s *Store) rewrite(version string, all map[string]held) error {
	if s.file != nil {
		_ = s.file.Close()
		s.file = nil
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
	s.file, s.changes = file, 0
	return nil
}

// writeAll writes a whole configuration, one resource a record: all at once would take as much
// memory again as the configuration has.
func writeAll(file io.Writer, version string, all map[string]held) (length int64, err error) {
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
	// The version is at the end: without it the whole is not complete.
	if _, err := writeRecord(buffered, &buffer, &discovery.DeltaDiscoveryResponse{SystemVersionInfo: version}); err != nil {
		return 0, err
	}
	return length, buffered.Flush()
}

// writeRecord writes one message by way of a buffer. A write that fails leaves a torn record.
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
