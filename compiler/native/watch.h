/* What a watched result depends on: a list of memory words with the values they had.

   CPython changes a dict's version tag with each change of its contents (never using a value twice) and a type's
   version tag with each change of the type or of its bases. An object's attributes are reached through two more words:
   its type pointer and its dict pointer, which `__class__ = ...` and `__dict__ = ...` change without touching a tag. So
   "nothing changed" is a run over (address, value) pairs, about half a nanosecond each. Words are listed outermost
   first: as long as the words before it hold, the memory that a word lies in is alive.

   A module has four tables of hooks, which are empty. From 3.12 on the interpreter is asked to say when one of those is
   written or freed (PyDict_Watch): their versions are looked at only after it did, or where another word has
      changed. */
#ifndef TCOMPILE_WATCH_H
#define TCOMPILE_WATCH_H
#include "values.h"

typedef struct { const uint64_t *addr; uint64_t value; } Word;
typedef struct {
    PyObject *key, *value;                                  /* value and its type: compared only */
    PyTypeObject *type;
    Py_hash_t hash;
    int32_t next;
} Lookup;
typedef struct { PyObject *dict; int32_t first_lookup; int whole, silent; } DictRecord;    /* dict: borrowed */
typedef struct { uint64_t addr; int32_t index; } Seen;

struct Recorder {
    Word *words; Py_ssize_t n_words, cap_words;
    int32_t *word_dict;
    Py_ssize_t cap_word_dict; /* for each word the dict record it is the version of, or -1 */
    Lookup *lookups; Py_ssize_t n_lookups, cap_lookups;
    DictRecord *dicts; Py_ssize_t n_dicts, cap_dicts;
    Seen *seen; Py_ssize_t n_seen, cap_seen;                /* hash table of recorded addresses */
    PyObject *held;                                         /* list: objects kept alive by the record */
#if PY_VERSION_HEX >= 0x030C0000
    Word *quick;
    Py_ssize_t n_quick;
    uint64_t writes; /* the words without those of silent dicts, and `dict_writes` at the last look */
#endif
    int unwatchable;                                        /* set by a step whose result can change unseen */
    int failed;                                             /* out of memory, or a type without a version */
};

HIDDEN void rec_clear(Recorder *rec);
HIDDEN void rec_word(Recorder *rec, const void *addr);
HIDDEN void rec_type(Recorder *rec, PyTypeObject *type);
HIDDEN void rec_object(Recorder *rec, PyObject *o);                  /* its type pointer, and the type */
HIDDEN void rec_container(Recorder *rec, PyObject *o); /* rec_object; left out where a dict's version says it */
HIDDEN void rec_lookup(Recorder *rec, PyObject *dict, PyObject *key, Py_hash_t hash, PyObject *value);
#if PY_VERSION_HEX >= 0x030D0000
/* An attribute that lies in the object itself: 3.13 writes those without telling any dict, so the word it lies in is
   recorded. 0 where this object keeps its attributes in a dict alone. `rec` may be NULL. */
HIDDEN int rec_inline_attr(Recorder *rec, PyObject *o, PyObject *name, PyObject **value);
#endif
HIDDEN void rec_whole_dict(Recorder *rec, PyObject *dict);           /* any change of it counts */
HIDDEN void rec_tuple_item(Recorder *rec, PyObject *tuple,
                           Py_ssize_t i); /* its length, and item i where it is inside */
HIDDEN void rec_hold(Recorder *rec, PyObject *o);
HIDDEN void rec_finish(Recorder *rec);                               /* all is recorded, or was looked through */
/* Whether everything recorded is as it was. A dict that changed elsewhere than at the keys that were looked up is
   accepted, and its new version recorded. */
HIDDEN int rec_valid(Recorder *rec);

#endif
