// SPDX-License-Identifier: Apache-2.0

// Package crd validates objects against CRDs, by default Millrace's, as an API server does.
package crd

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	structuralpruning "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

//go:embed millrace.io_*.yaml
var files embed.FS

// Kind is a kind in one of its versions.
type Kind struct {
	Namespaced bool
	validator  validation.SchemaValidator
	structural *structuralschema.Structural
	rules      *cel.Validator
}

// Kinds returns the kinds of group millrace.io, by version and kind.
var Kinds = sync.OnceValues(kinds)

func kinds() (map[schema.GroupVersionKind]*Kind, error) {
	found := map[schema.GroupVersionKind]*Kind{}
	return found, fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		kinds, err := Parse(content)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for name, kind := range kinds {
			found[name] = kind
		}
		return nil
	})
}

// Parse returns the served versions of the kind in a CRD's YAML.
func Parse(content []byte) (map[schema.GroupVersionKind]*Kind, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(content, &crd); err != nil {
		return nil, fmt.Errorf("reading a CRD: %w", err)
	}
	found := map[schema.GroupVersionKind]*Kind{}
	for i := range crd.Spec.Versions {
		version := &crd.Spec.Versions[i]
		if !version.Served {
			continue
		}
		kind, err := newKind(version.Schema.OpenAPIV3Schema)
		if err != nil {
			return nil, fmt.Errorf("reading the schema of %s of CRD %s: %w", version.Name, crd.Name, err)
		}
		kind.Namespaced = crd.Spec.Scope == apiextensionsv1.NamespaceScoped
		found[schema.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.Kind}] = kind
	}
	return found, nil
}

func newKind(properties *apiextensionsv1.JSONSchemaProps) (*Kind, error) {
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(properties, &internal, nil); err != nil {
		return nil, err
	}
	validator, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(&internal)
	if err != nil {
		return nil, err
	}
	return &Kind{
		validator: validator, structural: structural,
		rules: cel.NewValidator(structural, true, celconfig.PerCallLimit),
	}, nil
}

// rootField is the path of an error of a rule of the whole object. Its message names the field.
var rootField = (*field.Path)(nil).String()

// Problems returns the errors of creating an object, including unknown fields, and applies defaults.
func (k *Kind) Problems(object *unstructured.Unstructured) (found []string) {
	unknown := structuralpruning.PruneWithOptions(object.Object, k.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, path := range unknown {
		found = append(found, "there is no field "+path)
	}
	defaulting.Default(object.Object, k.structural)
	problems := apivalidation.ValidateObjectMetaAccessor(object, k.Namespaced, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	problems = append(problems, validation.ValidateCustomResource(nil, object.Object, k.validator)...)
	problems = append(problems, listtype.ValidateListSetsAndMaps(nil, k.structural, object.Object)...)
	if len(problems) == 0 && k.rules != nil {
		// Like an API server, evaluate rules only on objects that match the schema.
		broken, _ := k.rules.Validate(context.Background(), nil, k.structural, object.Object, nil, celconfig.RuntimeCELCostBudget)
		problems = append(problems, broken...)
	}
	for _, problem := range problems {
		if problem.Field == rootField {
			found = append(found, problem.Detail)
			continue
		}
		found = append(found, problem.Error())
	}
	return found
}
