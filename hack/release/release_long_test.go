// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"sigs.k8s.io/yaml"
)

// prepared returns a configuration for which only the command line is built, because building all programs
// for all systems takes minutes.
func prepared(t *testing.T, registry string) configuration {
	t.Helper()
	directory := t.TempDir()
	c := configuration{
		version: "v0.1.0", revision: strings.Repeat("a", 40), created: time.Unix(1700000000, 0).UTC(),
		registry: registry, downloads: "https://example.com/downloads", root: "../..",
		programs: filepath.Join(directory, "programs"), millrace: filepath.Join(directory, "millrace"),
		output: filepath.Join(directory, "release"),
	}
	var err error
	if c.sources, err = findSources(t.Context()); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", directory+"/", "../../cmd/millrace", "../mkimage")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building: %v: %s", err, out)
	}
	for _, s := range systems {
		put(t, filepath.Join(directory, "mkimage"), filepath.Join(c.programs, s.String(), s.program()))
	}
	for _, architecture := range architectures {
		for _, image := range images {
			for _, file := range image.files() {
				put(t, filepath.Join(directory, "mkimage"), filepath.Join(c.programs, "linux-"+architecture, file))
			}
		}
	}
	return c
}

func put(t *testing.T, from, to string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Link(from, to)); err != nil {
		t.Fatal(err)
	}
}

func passwordFor(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		if user, password, _ := request.BasicAuth(); user != "millrace" || password != "secret" {
			out.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			out.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(out, request)
	})
}

func TestRelease(t *testing.T) {
	server := httptest.NewServer(passwordFor(registry.New(registry.Logger(log.New(io.Discard, "", 0)))))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	c := prepared(t, host+"/millrace")
	c.signer = newSigner(t)
	var out bytes.Buffer
	if err := build(t.Context(), c, &out); err != nil {
		t.Fatal(err)
	}
	files := sums(t, c.output)

	t.Run("files", func(t *testing.T) { testFiles(t, c, files) })
	t.Run("images", func(t *testing.T) { testImages(t, c) })
	t.Run("manifests", func(t *testing.T) { testManifests(t, c, out.String()) })
	t.Run("chart", func(t *testing.T) { testChart(t, c, out.String()) })
	t.Run("command line", func(t *testing.T) { testCommandLine(t, c) })
	t.Run("Krew", func(t *testing.T) { testKrew(t, c, files) })
	t.Run("SBOM", func(t *testing.T) { testMaterials(t, c) })
	t.Run("signature of the sums", func(t *testing.T) { testSignedSums(t, c.output) })

	again := c
	again.output = filepath.Join(t.TempDir(), "again")
	again.push = true
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	if err := build(t.Context(), again, io.Discard); err == nil || !strings.Contains(err.Error(), "docker login "+host) {
		t.Errorf("pushing without a password: %v", err)
	}
	if difference := cmp.Diff(files, sums(t, again.output)); difference != "" {
		t.Errorf("the second release differs: %s", difference)
	}
	logIn(t, host)
	built, err := buildImages(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := push(t.Context(), built); err != nil {
		t.Fatal(err)
	}
	testPushed(t, out.String())
	testSignedImages(t, c, built)
}

// sums returns the checksums of all files except SHA256SUMS and its signature. It checks that SHA256SUMS has
// the same ones.
func sums(t *testing.T, directory string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasPrefix(entry.Name(), sumsFile) {
			return err
		}
		name, err := filepath.Rel(directory, path)
		if err != nil {
			return err
		}
		found[name], err = sumOf(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = directory
	text, err := check.CombinedOutput()
	if lines := strings.Count(string(text), ": OK\n"); err != nil || lines != len(found) {
		t.Errorf("sha256sum --check: %v: %d of %d files: %s", err, lines, len(found), text)
	}
	return found
}

func testFiles(t *testing.T, c configuration, files map[string]string) {
	want := []string{
		"cleanup.yaml", "gateway.yaml", "install.yaml", "krew.yaml", "millrace-0.1.0.tgz", "millrace-v0.1.0-airgap.tar", "millrace-v0.1.0-config.tar.gz",
		"millrace-v0.1.0-signatures.tar", "cosign.pub", vexFile,
	}
	for _, s := range systems {
		want = append(want, s.archive(c.version), "sbom/millrace-"+s.String()+".cdx.json")
	}
	for _, program := range []string{"operator", "lbagent", "lbbfd", "gateway", "lbproxy", "liveapi"} {
		for _, architecture := range architectures {
			want = append(want, "sbom/"+program+"-linux-"+architecture+".cdx.json")
		}
	}
	for _, name := range want {
		if files[name] == "" {
			t.Errorf("the release has no %s", name)
		}
	}
	if len(files) != len(want) {
		t.Errorf("the release has %d files, want %d", len(files), len(want))
	}
}

func unpacked(t *testing.T, archive string) string {
	t.Helper()
	directory := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xf", archive, "-C", directory).CombinedOutput(); err != nil {
		t.Fatalf("tar -xf %s: %v: %s", archive, err, out)
	}
	return directory
}

func airGap(t *testing.T, c configuration) string {
	t.Helper()
	return unpacked(t, filepath.Join(c.output, "millrace-"+c.version+"-airgap.tar"))
}

func testImages(t *testing.T, c configuration) {
	index, err := layout.ImageIndexFromPath(airGap(t, c))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != len(images) {
		t.Fatalf("%v: %d images, want %d", err, len(manifest.Manifests), len(images))
	}
	for _, descriptor := range manifest.Manifests {
		name := descriptor.Annotations["io.containerd.image.name"]
		image, err := index.ImageIndex(descriptor.Digest)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		members, err := image.IndexManifest()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var found []string
		for _, member := range members.Manifests {
			found = append(found, member.Platform.String())
			one, err := image.Image(member.Digest)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			testImage(t, one, member.Platform)
		}
		if !slices.Equal(found, []string{"linux/amd64", "linux/arm64"}) {
			t.Errorf("%s is for %v", name, found)
		}
		if members.Annotations["org.opencontainers.image.version"] != c.version {
			t.Errorf("%s has the annotations %v", name, members.Annotations)
		}
	}
}

func testImage(t *testing.T, image v1.Image, platform *v1.Platform) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != platform.Architecture || config.OS != platform.OS {
		t.Errorf("an image for %s has %s/%s", platform, config.OS, config.Architecture)
	}
	for _, label := range []string{"title", "description", "version", "revision", "created", "source", "licenses"} {
		if config.Config.Labels["org.opencontainers.image."+label] == "" {
			t.Errorf("an image has no label %s: %v", label, config.Config.Labels)
		}
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%v: %d layers", err, len(layers))
	}
	kind, err := layers[0].MediaType()
	if err != nil || kind != types.OCILayer {
		t.Errorf("%v: a layer is %s, want %s", err, kind, types.OCILayer)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	files := map[string]bool{}
	archive := tar.NewReader(content)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = header.Size > 0
	}
	if !files["LICENSE"] || !files[noticesFile] {
		t.Errorf("an image has the files %v, want LICENSE and %s", files, noticesFile)
	}
}

var reference = regexp.MustCompile(`image: (\S+)`)

// testManifests checks that all images in the manifests are images of the release with their digests.
func testManifests(t *testing.T, c configuration, printed string) {
	references := strings.Fields(printed)
	if len(references) != len(images) {
		t.Errorf("%d references were printed: %s", len(references), printed)
	}
	used := map[string]bool{}
	check := func(file string) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range reference.FindAllStringSubmatch(string(content), -1) {
			used[found[1]] = true
			if !slices.Contains(references, found[1]) {
				t.Errorf("%s: image %s is not of the release: %s", file, found[1], printed)
			}
		}
	}
	config := unpacked(t, filepath.Join(c.output, "millrace-"+c.version+"-config.tar.gz"))
	for file := range manifests {
		check(filepath.Join(c.output, file))
	}
	if len(used) != 4 {
		t.Errorf("the manifests use %d images, want those without liveapi", len(used))
	}
	check(filepath.Join(config, "millrace-v0.1.0/config/liveapi/deployment.yaml"))
	if len(used) != len(images) {
		t.Errorf("of %d images %d are used", len(images), len(used))
	}
	// The archive contains the bases of overlays.
	command := exec.CommandContext(t.Context(), "go", "tool", "-modfile=hack/tools/kustomize/go.mod", "kustomize", "build",
		filepath.Join(config, "millrace-v0.1.0/config/default"))
	command.Dir = c.root
	rendered, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	install, err := os.ReadFile(filepath.Join(c.output, "install.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if difference := cmp.Diff(string(rendered), string(install)); difference != "" {
		t.Errorf("config/default of the archive is not install.yaml: %s", difference)
	}
	if got, err := os.ReadFile(filepath.Join(airGap(t, c), "install.yaml")); err != nil || !bytes.Equal(got, install) {
		t.Errorf("the air-gap archive has another install.yaml: %v", err)
	}
}

// testChart checks that the values of the chart contain the digests of the release.
func testChart(t *testing.T, c configuration, printed string) {
	directory := filepath.Join(unpacked(t, filepath.Join(c.output, "millrace-0.1.0.tgz")), "millrace")
	var metadata struct{ Version, AppVersion string }
	var values struct {
		Images struct {
			Registry, Tag string
			Digests       map[string]string
		}
	}
	for file, out := range map[string]any{"Chart.yaml": &metadata, "values.yaml": &values} {
		content, err := os.ReadFile(filepath.Join(directory, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(content, out); err != nil {
			t.Fatal(err)
		}
	}
	if metadata.Version != "0.1.0" || metadata.AppVersion != "v0.1.0" {
		t.Errorf("the chart is %+v", metadata)
	}
	for _, image := range images {
		want := values.Images.Registry + "/" + image.name + ":" + values.Images.Tag + "@" + values.Images.Digests[image.name]
		if !slices.Contains(strings.Fields(printed), want) {
			t.Errorf("the chart has the image %s, the release %s", want, printed)
		}
	}
	if _, err := os.Stat(filepath.Join(airGap(t, c), "millrace-0.1.0.tgz")); err != nil {
		t.Errorf("the air-gap archive has no chart: %v", err)
	}
}

func testCommandLine(t *testing.T, c configuration) {
	common := []string{
		"LICENSE", noticesFile, "completions/millrace.bash", "completions/millrace.zsh", "completions/millrace.fish",
		"completions/millrace.powershell", "man/man1/millrace.1", "man/man1/millrace-trace.1",
	}
	for _, s := range systems {
		found := names(t, filepath.Join(c.output, s.archive(c.version)))
		want := append([]string{s.program()}, common...)
		if s.os != "windows" {
			want = append(want, plugins...)
		}
		for _, name := range want {
			if !slices.Contains(found, name) {
				t.Errorf("%s has no %s", s.archive(c.version), name)
			}
		}
	}
	directory := unpacked(t, filepath.Join(c.output, system{"linux", "amd64"}.archive(c.version)))
	page, err := os.ReadFile(filepath.Join(directory, "man/man1/millrace-trace.1"))
	if err != nil || !bytes.Contains(page, []byte(`"Nov 2023"`)) || bytes.Contains(page, []byte("Auto generated")) {
		t.Errorf("manual page of trace: %v: %.300s", err, page)
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(directory, "kubectl-millrace"), "--help").CombinedOutput(); err != nil {
		t.Errorf("the plug-in does not run: %v: %s", err, out)
	}
}

func names(t *testing.T, archive string) []string {
	t.Helper()
	var found []string
	if strings.HasSuffix(archive, ".zip") {
		files, err := zip.OpenReader(archive)
		if err != nil {
			t.Fatal(err)
		}
		defer files.Close()
		for _, file := range files.File {
			found = append(found, file.Name)
		}
		return found
	}
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	content, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for reader := tar.NewReader(content); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, header.Name)
	}
}

func testKrew(t *testing.T, c configuration, files map[string]string) {
	content, err := os.ReadFile(filepath.Join(c.output, "krew.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest krew
	if err := yaml.UnmarshalStrict(content, &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest.Spec.Platforms) != len(systems) {
		t.Errorf("%d platforms, want %d", len(manifest.Spec.Platforms), len(systems))
	}
	for _, platform := range manifest.Spec.Platforms {
		archive, found := strings.CutPrefix(platform.URI, "https://example.com/downloads/v0.1.0/")
		if !found || files[archive] == "" || files[archive] != platform.SHA256 {
			t.Errorf("%s has the sum %s, the file has %q", platform.URI, platform.SHA256, files[archive])
		}
		if !slices.Contains(names(t, filepath.Join(c.output, archive)), platform.Bin) {
			t.Errorf("%s has no %s", archive, platform.Bin)
		}
	}
}

func testMaterials(t *testing.T, c configuration) {
	file, err := os.Open(filepath.Join(c.output, "sbom", "lbagent-linux-arm64.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var bom cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(file, cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	sum, err := sumOf(filepath.Join(c.programs, "linux-arm64", "lbagent"))
	if err != nil || (*bom.Metadata.Component.Hashes)[0].Value != sum {
		t.Errorf("the SBOM is of the file %v, want %s: %v", bom.Metadata.Component.Hashes, sum, err)
	}
	// go.mod contains the modules of mkimage.
	modules := map[string]bool{}
	for _, component := range *bom.Components {
		modules[component.PackageURL] = component.Licenses != nil && len(*component.Licenses) > 0
	}
	for _, module := range []string{"github.com/google/go-containerregistry", "github.com/spf13/cobra"} {
		listed, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "pkg:golang/{{.Path}}@{{.Version}}", module).Output()
		if want := strings.TrimSpace(string(listed)); err != nil || !modules[want] {
			t.Errorf("the SBOM has no %q with a license: %v", want, err)
		}
	}
}

func logIn(t *testing.T, host string) {
	t.Helper()
	directory := t.TempDir()
	content, err := json.Marshal(map[string]any{"auths": map[string]any{host: map[string]string{"username": "millrace", "password": "secret"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, "config.json"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", directory)
}

func testPushed(t *testing.T, printed string) {
	for _, text := range strings.Fields(printed) {
		// The library accepts a tag or a digest, like registries, but not both.
		tag, digest, _ := strings.Cut(text, "@")
		repository := tag[:strings.LastIndex(tag, ":")]
		for _, text := range []string{tag, repository + "@" + digest} {
			parsed, err := name.ParseReference(text)
			if err != nil {
				t.Fatal(err)
			}
			index, err := remote.Index(parsed, remote.WithAuthFromKeychain(authn.DefaultKeychain))
			if err != nil {
				t.Errorf("%s was not pushed: %v", text, err)
				continue
			}
			if got, err := index.Digest(); err != nil || got.String() != digest {
				t.Errorf("%s has the digest %s: %v", text, got, err)
			}
			if err := validate.Index(index); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
}
