#include "recipe/yaml_scan.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <yaml.h>

#include "base/check.h"

/* Document, section, list. */
#define MAX_DEPTH 3

/* Where the scan stands. Depth counts open mappings and sequences; a mapping alternates between key and value. */
typedef struct scan_state {
    lgi_yaml_scan *scan;
    int depth;
    int num_documents;
    bool is_mapping[MAX_DEPTH + 1]; /* by depth */
    bool is_value_next[MAX_DEPTH + 1];
    char section[LGI_YAML_KEY_BYTES];
} scan_state;

static void remember_key(scan_state *state, const char *name, int line)
{
    if (state->depth == 1) {
        (void)snprintf(state->section, sizeof state->section, "%s", name);
    }
    if (state->scan->num_keys == LGI_YAML_MAX_KEYS) {
        return;
    }
    lgi_yaml_key *const key = &state->scan->keys[state->scan->num_keys++];
    key->line = line;
    if (state->depth == 1) {
        (void)snprintf(key->path, sizeof key->path, "%s", name);
    } else {
        (void)snprintf(key->path, sizeof key->path, "%.39s.%.39s", state->section, name);
    }
}

/* A scalar, or a whole collection, has stood where a key or value was expected. */
static void end_node(scan_state *state)
{
    if (state->depth > 0 && state->is_mapping[state->depth]) {
        state->is_value_next[state->depth] = !state->is_value_next[state->depth];
    }
}

static lg_status open_collection(scan_state *state, bool is_mapping, int line)
{
    if (state->depth == MAX_DEPTH) {
        LG_FAIL(LG_INVALID_ARG, "line %d: nested deeper than sections, keys and lists", line);
    }
    state->depth++;
    state->is_mapping[state->depth] = is_mapping;
    state->is_value_next[state->depth] = false;
    return LG_OK;
}

static lg_status take_scalar(scan_state *state, const yaml_event_t *event, int line)
{
    const char *const text = (const char *)event->data.scalar.value;
    if (strlen(text) != event->data.scalar.length) {
        LG_FAIL(LG_INVALID_ARG, "line %d: a text with a 0 character after '%s'", line, text);
    }
    if (event->data.scalar.tag != NULL) {
        LG_FAIL(LG_INVALID_ARG, "line %d: YAML tags (%s) are not allowed", line,
                (const char *)event->data.scalar.tag);
    }
    if (state->depth > 0 && state->is_mapping[state->depth] &&
        !state->is_value_next[state->depth]) {
        remember_key(state, text, line);
    }
    end_node(state);
    return LG_OK;
}

static lg_status take_event(scan_state *state, const yaml_event_t *event)
{
    const int line = (int)event->start_mark.line + 1;
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (state->num_documents++ > 0) {
            LG_FAIL(LG_INVALID_ARG, "line %d: a recipe is one YAML document, here starts another",
                    line);
        }
        return LG_OK;
    case YAML_ALIAS_EVENT:
        LG_FAIL(LG_INVALID_ARG, "line %d: YAML aliases (*%s) are not allowed", line,
                (const char *)event->data.alias.anchor);
    case YAML_SCALAR_EVENT:
        return take_scalar(state, event, line);
    case YAML_MAPPING_START_EVENT:
        return open_collection(state, true, line);
    case YAML_SEQUENCE_START_EVENT:
        return open_collection(state, false, line);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        state->depth--;
        end_node(state);
        return LG_OK;
    default:
        return LG_OK;
    }
}

static lg_status fail_parser(const yaml_parser_t *parser)
{
    const char *const problem = parser->problem != NULL ? parser->problem : "unknown error";
    if (parser->error == YAML_MEMORY_ERROR) {
        LG_FAIL(LG_OUT_OF_MEMORY, "out of memory while reading YAML");
    }
    if (parser->error == YAML_READER_ERROR) {
        LG_FAIL(LG_INVALID_ARG, "byte %zu: not YAML: %s", parser->problem_offset, problem);
    }
    LG_FAIL(LG_INVALID_ARG, "line %zu: not YAML: %s", parser->problem_mark.line + 1, problem);
}

lg_status lgi_yaml_scan_text(lgi_yaml_scan *scan, const char *text, size_t num_bytes)
{
    lg_status status = LG_OK;
    yaml_parser_t parser;
    scan_state state = {.scan = scan};
    scan->num_keys = 0;
    if (!yaml_parser_initialize(&parser)) {
        LG_FAIL(LG_OUT_OF_MEMORY, "out of memory while reading YAML");
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, num_bytes);
    for (bool is_end = false; !is_end && status == LG_OK;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            status = fail_parser(&parser);
            break;
        }
        is_end = event.type == YAML_STREAM_END_EVENT;
        status = take_event(&state, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return status;
}

int lgi_yaml_scan_line(const lgi_yaml_scan *scan, const char *path)
{
    for (int i = scan->num_keys - 1; i >= 0; i--) {
        if (strncmp(scan->keys[i].path, path, LGI_YAML_KEY_BYTES - 1) == 0) {
            return scan->keys[i].line;
        }
    }
    return 0;
}
