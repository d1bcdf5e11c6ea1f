/**
 * Checkpoints: named tensors in safetensors files, and directories of such files with a manifest.
 *
 * A tensor file is plain safetensors and opens with anyone's library. A checkpoint is a directory with
 * `model.safetensors` (weights and states), `optimizer.safetensors` (slots; may be absent) and `manifest.json` (step,
 * seed, recipe, checksums). Checkpoints of one run stand side by side in a root directory as `step-000500`, and the
 * file `latest` there names the current one. Format: docs/formats/checkpoint.md.
 *
 * Nothing is half written: a crash at any moment leaves the checkpoint before or the new one, whole. Nothing is
 * trusted: everything is checked when a file is opened.
 */
#ifndef LEAPGRAD_CHECKPOINT_H
#define LEAPGRAD_CHECKPOINT_H

#include "leapgrad/status.h"
#include "leapgrad/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- tensor files --------------------------------------------------------------------------------------------- */

/** Element types of tensor files: enum name, name in the file, bytes. More than the engine computes with. */
#define LG_FILE_DTYPE_LIST(X) \
    X(F32, "F32", 4) \
    X(I64, "I64", 8) \
    X(U8, "U8", 1) \
    X(I32, "I32", 4) \
    X(F64, "F64", 8) \
    X(BF16, "BF16", 2) \
    X(F16, "F16", 2) \
    X(U64, "U64", 8) \
    X(U32, "U32", 4) \
    X(U16, "U16", 2) \
    X(I16, "I16", 2) \
    X(I8, "I8", 1) \
    X(BOOL, "BOOL", 1)

typedef enum lg_file_dtype {
#define LG_FILE_DTYPE_ENUM(name, text, num_bytes) LG_FILE_DTYPE_##name,
    LG_FILE_DTYPE_LIST(LG_FILE_DTYPE_ENUM)
#undef LG_FILE_DTYPE_ENUM
        LG_NUM_FILE_DTYPES
} lg_file_dtype;

/** "F32", "I64", ... */
LG_API const char *lg_file_dtype_name(lg_file_dtype dtype);
/** Bytes of one element. */
LG_API size_t lg_file_dtype_bytes(lg_file_dtype dtype);

/** Longest tensor name in bytes. */
#define LG_MAX_TENSOR_NAME_BYTES 1024

/** A tensor of a file. */
typedef struct lg_tensor_info {
    const char *name;
    lg_file_dtype dtype;
    lg_shape shape;
    int64_t offset_bytes; /* from the end of the header */
    int64_t num_bytes;
} lg_tensor_info;

/** Collects what a file will hold. */
typedef struct lg_tensor_writer lg_tensor_writer;

/** Writes the tensor's `num_bytes` (row-major, little-endian) to `dst`. Called once per save, one tensor at a time. */
typedef lg_status (*lg_tensor_fill_fn)(void *user, const char *name, void *dst, size_t num_bytes);

LG_API LG_NODISCARD lg_status lg_tensor_writer_create(lg_tensor_writer **out);
LG_API void lg_tensor_writer_destroy(lg_tensor_writer *writer);

/**
 * Adds a tensor whose bytes stand at `data`, row-major.
 *
 * Lifetime: `data` must stay valid until the last save; name and shape are copied.
 * @return INVALID_ARG for an empty, too long, doubled or non-UTF-8 name, the name "__metadata__" or a negative dimension.
 */
LG_API LG_NODISCARD lg_status lg_tensor_writer_add(lg_tensor_writer *writer, const char *name,
                                                   lg_file_dtype dtype, const lg_shape *shape,
                                                   const void *data);
/** The same, but `fill` is asked for the bytes while the file is written: only one tensor is in memory at a time. */
LG_API LG_NODISCARD lg_status lg_tensor_writer_add_filled(lg_tensor_writer *writer,
                                                          const char *name, lg_file_dtype dtype,
                                                          const lg_shape *shape,
                                                          lg_tensor_fill_fn fill, void *user);
/** Adds a string to the file's metadata; a key again replaces its value. Both must be UTF-8. */
LG_API LG_NODISCARD lg_status lg_tensor_writer_add_metadata(lg_tensor_writer *writer,
                                                            const char *key, const char *value);
/** Writes the file: whole, synced and renamed into place, or not at all. */
LG_API LG_NODISCARD lg_status lg_tensor_writer_save(const lg_tensor_writer *writer,
                                                    const char *path);

/** An open tensor file. Thread safety: reading from many threads at once is fine. */
typedef struct lg_tensor_file lg_tensor_file;

/**
 * Opens any safetensors file and checks its header against the file: length, JSON, types, shapes, offsets without
 * overlap or hole, no name twice, nothing cut off.
 *
 * @return IO if it cannot be read; CORRUPT, with file, tensor and what was expected.
 */
LG_API LG_NODISCARD lg_status lg_tensor_file_open(lg_tensor_file **out, const char *path);
LG_API void lg_tensor_file_close(lg_tensor_file *file);

LG_API const char *lg_tensor_file_path(const lg_tensor_file *file);
LG_API int lg_tensor_file_num_tensors(const lg_tensor_file *file);
/** In the order of their bytes. Lifetime: until lg_tensor_file_close(). */
LG_API const lg_tensor_info *lg_tensor_file_tensor(const lg_tensor_file *file, int idx);
/** The index of the tensor called `name`, or -1. */
LG_API int lg_tensor_file_find(const lg_tensor_file *file, const char *name);
/** The metadata string of `key`, or NULL. Lifetime: until lg_tensor_file_close(). */
LG_API const char *lg_tensor_file_metadata(const lg_tensor_file *file, const char *key);

/**
 * Reads the tensor called `name` into `dst`, which has room for `shape` elements of `dtype`. In a checkpoint, the
 * bytes are held against the manifest's checksum.
 *
 * @return INVALID_ARG if there is no such tensor or it has another type or shape; IO; CORRUPT.
 */
LG_API LG_NODISCARD lg_status lg_tensor_file_read(const lg_tensor_file *file, const char *name,
                                                  lg_file_dtype dtype, const lg_shape *shape,
                                                  void *dst);

/* --- the hash of the weights ------------------------------------------------------------------------------------ */

/** Characters of a weights hash with the final 0: 128 bits in hexadecimal. */
#define LG_WEIGHTS_HASH_CHARS 33

/**
 * Hashes tensors in the order in which they are added. XXH3-128 (seed 0) over, for each tensor: name length (u32),
 * name, number of dimensions (u32), dimensions (u64 each), elements (f32); all little-endian. Equal hashes mean
 * equal names, shapes and bits.
 */
typedef struct lg_weights_hasher lg_weights_hasher;

LG_API LG_NODISCARD lg_status lg_weights_hasher_create(lg_weights_hasher **out);
LG_API void lg_weights_hasher_destroy(lg_weights_hasher *hasher);
LG_API void lg_weights_hasher_add(lg_weights_hasher *hasher, const char *name,
                                  const lg_shape *shape, const float *elems);
/** The hash of what was added so far, as text. */
LG_API void lg_weights_hasher_format(const lg_weights_hasher *hasher,
                                     char text[LG_WEIGHTS_HASH_CHARS]);

/* --- checkpoints ------------------------------------------------------------------------------------------------ */

/** What a checkpoint says besides its tensors. */
typedef struct lg_checkpoint_info {
    int64_t step;             /* steps done; >= 0 */
    int64_t seed;             /* of the run */
    const char *recipe_json;  /* a JSON object: the effective recipe; NULL: {} */
    const char *weights_hash; /* NULL: "" */
    const char *extra_json; /* a JSON object: what else the caller wants to find again; NULL: {} */
} lg_checkpoint_info;

/**
 * Saves a checkpoint as `root`/step-NNNNNN (with .1, .2 ... behind it if that exists already), points `root`/latest
 * to it, then removes older checkpoints but the `num_keep` - 1 newest before this step. Creates `root` if need be.
 * One process at a time may save into a root.
 *
 * @param root       Directory of the run's checkpoints.
 * @param model      Weights and states.
 * @param optimizer  Slots; NULL for none.
 * @param info       Copied.
 * @param num_keep   Checkpoints to keep, this one included; at least 1.
 * @param out_path   Where the checkpoint is, cut to `out_path_bytes`; may be NULL.
 * @param out_path_bytes  Room at `out_path`.
 * @return IO if anything could not be written; then `root` has what it had before.
 */
LG_API LG_NODISCARD lg_status lg_checkpoint_save(const char *root, const lg_tensor_writer *model,
                                                 const lg_tensor_writer *optimizer,
                                                 const lg_checkpoint_info *info, int num_keep,
                                                 char *out_path, size_t out_path_bytes);

typedef struct lg_checkpoint lg_checkpoint;

/**
 * Opens a checkpoint and verifies all of it, checksums included, before anything is handed out.
 *
 * @param[out] out  Ownership: the caller's; lg_checkpoint_close().
 * @param path      A checkpoint's directory, or a root, whose `latest` is followed; without one, its newest checkpoint.
 * @return IO if something is missing or cannot be read; CORRUPT if a file is not what the manifest says; NOT_SUPPORTED
 *         for another format version.
 */
LG_API LG_NODISCARD lg_status lg_checkpoint_open(lg_checkpoint **out, const char *path);
LG_API void lg_checkpoint_close(lg_checkpoint *checkpoint);
/** Whether `path` is a checkpoint or a root with one. It may still be damaged. */
LG_API bool lg_checkpoint_exists(const char *path);

/** Lifetime of the pointers here and below: until lg_checkpoint_close(). */
LG_API const lg_checkpoint_info *lg_checkpoint_about(const lg_checkpoint *checkpoint);
/** The checkpoint's own directory. */
LG_API const char *lg_checkpoint_path(const lg_checkpoint *checkpoint);
LG_API const lg_tensor_file *lg_checkpoint_model(const lg_checkpoint *checkpoint);
/** NULL if it was saved without. */
LG_API const lg_tensor_file *lg_checkpoint_optimizer(const lg_checkpoint *checkpoint);

#ifdef __cplusplus
}
#endif

#endif
