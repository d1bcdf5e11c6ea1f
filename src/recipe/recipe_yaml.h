/* YAML through libcyaml, by a schema made from the table of keys: every value comes and goes as text. */
#ifndef LGI_RECIPE_RECIPE_YAML_H
#define LGI_RECIPE_RECIPE_YAML_H

#include "leapgrad/recipe.h"

/*
 * Sets every key that the document has. Only INVALID_ARG and OUT_OF_MEMORY; messages name the key and, where known, the
 * line, but not the source.
 */
LG_NODISCARD lg_status lgi_recipe_read_yaml(lg_recipe *recipe, const char *text, size_t num_bytes);

/* The whole recipe as a document. Ownership: the caller's, lgi_free(). */
LG_NODISCARD lg_status lgi_recipe_write_yaml(const lg_recipe *recipe, char **out);

#endif
