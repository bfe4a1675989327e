#include "watch.h"

/* ma_version_tag is deprecated from 3.12 on, and gone in 3.14. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#if PY_VERSION_HEX >= 0x030D0000
#define Py_BUILD_CORE
#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>
#undef Py_BUILD_CORE
#endif

enum { NO_VERSION = -2 };                           /* Seen.index of a type that gets no version any more */

static int grow(void *pp, Py_ssize_t *cap, Py_ssize_t n, size_t item)
{
    if (n < *cap)
        return 0;
    Py_ssize_t c = *cap ? *cap * 2 : 16;
    void *p = PyMem_Realloc(*(void **)pp, (size_t)c * item);
    if (p == NULL)
        return -1;
    *(void **)pp = p;
    *cap = c;
    return 0;
}

#if PY_VERSION_HEX >= 0x030C0000
static uint64_t dict_writes;                        /* of all silent dicts */
static int watcher = -2;                            /* -2: not asked for yet, -1: the interpreter has none left */

static int on_write(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    (void)event, (void)dict, (void)key, (void)value;
    dict_writes++;
    return 0;
}

/* An empty table of hooks whose writes we will hear of. Others are written in the course of a program. */
static int is_silent(PyObject *dict)
{
    if (!PyODict_CheckExact(dict) || PyODict_SIZE(dict))
        return 0;
    if (watcher == -2)
        watcher = PyDict_AddWatcher(on_write);
    if (watcher < 0 || PyDict_Watch(watcher, dict) < 0) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}
#endif

void rec_clear(Recorder *rec)
{
    Recorder old = *rec;
    memset(rec, 0, sizeof *rec);
    for (Py_ssize_t i = 0; i < old.n_lookups; i++)
        Py_DECREF(old.lookups[i].key);
    PyMem_Free(old.words);
    PyMem_Free(old.word_dict);
    PyMem_Free(old.lookups);
    PyMem_Free(old.dicts);
    PyMem_Free(old.seen);
#if PY_VERSION_HEX >= 0x030C0000
    PyMem_Free(old.quick);
#endif
    Py_XDECREF(old.held);
}

static inline size_t home(uint64_t addr, Py_ssize_t cap)
{
    return (size_t)((addr >> 3) * 0x9E3779B97F4A7C15ull >> 20) & (size_t)(cap - 1);
}

/* The entry of an address, made where it is new: then its index is -1 and *fresh is set. NULL without memory. */
static Seen *seen(Recorder *rec, const void *addr, int *fresh)
{
    *fresh = 0;
    if (rec->n_seen * 2 >= rec->cap_seen) {
        Py_ssize_t cap = rec->cap_seen ? rec->cap_seen * 2 : 64;
        Seen *table = PyMem_Calloc((size_t)cap, sizeof *table);
        if (table == NULL) {
            rec->failed = 1;
            return NULL;
        }
        for (Py_ssize_t i = 0; i < rec->cap_seen; i++) {
            if (rec->seen[i].addr) {
                size_t h = home(rec->seen[i].addr, cap);
                while (table[h].addr)
                    h = (h + 1) & (size_t)(cap - 1);
                table[h] = rec->seen[i];
            }
        }
        PyMem_Free(rec->seen);
        rec->seen = table;
        rec->cap_seen = cap;
    }
    uint64_t a = (uint64_t)(uintptr_t)addr;
    size_t h = home(a, rec->cap_seen);
    while (rec->seen[h].addr) {
        if (rec->seen[h].addr == a)
            return &rec->seen[h];
        h = (h + 1) & (size_t)(rec->cap_seen - 1);
    }
    rec->seen[h] = (Seen){a, -1};
    rec->n_seen++;
    *fresh = 1;
    return &rec->seen[h];
}

static void add_word(Recorder *rec, const void *addr, int32_t dict)
{
    if (grow(&rec->words, &rec->cap_words, rec->n_words, sizeof *rec->words) < 0 ||
        grow(&rec->word_dict, &rec->cap_word_dict, rec->n_words, sizeof *rec->word_dict) < 0) {
        rec->failed = 1;
        return;
    }
    rec->words[rec->n_words] = (Word){addr, *(const uint64_t *)addr};
    rec->word_dict[rec->n_words++] = dict;
}

void rec_word(Recorder *rec, const void *addr)
{
    int fresh;
    if (seen(rec, addr, &fresh) && fresh)
        add_word(rec, addr, -1);
}

void rec_object(Recorder *rec, PyObject *o)
{
    rec_word(rec, &o->ob_type);
    rec_type(rec, Py_TYPE(o));
}

static inline int has_version(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030D0000                        /* the flag is not kept any more */
    return type->tp_version_tag != 0;
#else
    return type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG && type->tp_version_tag != 0;
#endif
}

/* The version is a word like any other: it lies behind a word that says that the type is alive (an object's type
   pointer, a weak reference's object), so the record needs no reference. It is half a word; what fills the other half
   does not change. */
_Static_assert(offsetof(PyTypeObject, tp_version_tag) % sizeof(uint64_t) == 0, "a type's version starts a word");

void rec_type(Recorder *rec, PyTypeObject *type)
{
    static PyObject *name;
    int fresh;
    if (type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE && !(type->tp_flags & Py_TPFLAGS_HEAPTYPE))
        return;                                     /* a static type neither changes nor dies */
    Seen *s = seen(rec, type, &fresh);
    if (s == NULL)
        return;
    if (!fresh) {
        rec->unwatchable |= s->index == NO_VERSION;
        return;
    }
    if (!has_version(type)) {
        if (name == NULL)
            name = PyUnicode_InternFromString("__class__");
        _PyType_Lookup(type, name);                 /* gives the type a version, where it may still have one */
    }
    if (!has_version(type)) {
        s->index = NO_VERSION;                      /* it changed too often for the interpreter: asked at each call */
        rec->unwatchable = 1;
        return;
    }
    rec_word(rec, &type->tp_version_tag);
}

#if PY_VERSION_HEX >= 0x030E0000
/* 3.14 has no versions of dicts any more: what lies in one is looked up at each call. */
static DictRecord *dict_record(Recorder *rec, PyObject *dict)
{
    (void)dict;
    rec->unwatchable = 1;
    return NULL;
}
#else
static DictRecord *dict_record(Recorder *rec, PyObject *dict)
{
    int fresh;
    const uint64_t *tag = &((PyDictObject *)dict)->ma_version_tag;
    Seen *s = seen(rec, tag, &fresh);
    if (s == NULL)
        return NULL;
    if (fresh) {
        if (grow(&rec->dicts, &rec->cap_dicts, rec->n_dicts, sizeof *rec->dicts) < 0) {
            rec->failed = 1;
            return NULL;
        }
        s->index = (int32_t)rec->n_dicts;
        add_word(rec, tag, s->index);
        rec->dicts[rec->n_dicts++] = (DictRecord){dict, -1, 0, 0};
    }
    return s->index < 0 ? NULL : &rec->dicts[s->index];
}
#endif

#if PY_VERSION_HEX >= 0x030D0000
/* The word that holds the value of `name` among `values`, whose names are `keys`; for a name that is not among them,
   the number of names. The first word of `values` says whether they are in force, and how many are set. */
static PyObject *rec_value_of(Recorder *rec, PyDictKeysObject *keys, PyDictValues *values, PyObject *name)
{
    if (rec)
        rec_word(rec, values);
    PyDictUnicodeEntry *entries = DK_UNICODE_ENTRIES(keys);
    for (Py_ssize_t i = 0; i < keys->dk_nentries; i++) {
        if (entries[i].me_key == name || (entries[i].me_key && PyUnicode_Compare(entries[i].me_key, name) == 0)) {
            if (rec)
                rec_word(rec, &values->values[i]);
            return values->values[i];
        }
    }
    if (rec)
        rec_word(rec, &keys->dk_nentries);
    return NULL;
}

int rec_inline_attr(Recorder *rec, PyObject *o, PyObject *name, PyObject **value)
{
    PyTypeObject *tp = Py_TYPE(o);
    if (!(tp->tp_flags & Py_TPFLAGS_INLINE_VALUES) || !_PyObject_InlineValues(o)->valid)
        return 0;
    PyDictKeysObject *keys = ((PyHeapTypeObject *)tp)->ht_cached_keys;
    if (keys == NULL || keys->dk_kind == DICT_KEYS_GENERAL)
        return 0;
    *value = rec_value_of(rec, keys, _PyObject_InlineValues(o), name);
    return 1;
}
#endif

void rec_lookup(Recorder *rec, PyObject *dict, PyObject *key, Py_hash_t hash, PyObject *value)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyDictObject *mp = (PyDictObject *)dict;
    if (mp->ma_values != NULL) {                    /* the dict of such an object */
        rec_word(rec, &mp->ma_values);
        if (!PyUnicode_CheckExact(key) || mp->ma_keys->dk_kind == DICT_KEYS_GENERAL)
            rec->unwatchable = 1;
        else
            rec_value_of(rec, mp->ma_keys, mp->ma_values, key);
        return;
    }
#endif
    DictRecord *d = dict_record(rec, dict);
    if (d == NULL || grow(&rec->lookups, &rec->cap_lookups, rec->n_lookups, sizeof *rec->lookups) < 0) {
        rec->failed = !rec->unwatchable;
        return;
    }
    Py_INCREF(key);
    rec->lookups[rec->n_lookups] = (Lookup){key, value, value ? Py_TYPE(value) : NULL, hash, d->first_lookup};
    d->first_lookup = (int32_t)rec->n_lookups++;
}

/* A plain dict that a lookup just gave, and of which any change counts: its version is no other dict's, and what else
   may come to lie at its address has another type, which dict_unchanged() compares. So its type pointer need not be. */
void rec_container(Recorder *rec, PyObject *o)
{
#if PY_VERSION_HEX >= 0x030C0000
    if (is_silent(o)) return; /* we hear of its end; words_unchanged() looks at the type after that */
#endif
    if (PyDict_CheckExact(o) || PyODict_CheckExact(o)) {
        for (Py_ssize_t i = rec->n_lookups; i-- > 0 && i >= rec->n_lookups - 4;) {
            if (rec->lookups[i].value == o)
                return;
        }
    }
    rec_object(rec, o);
}

void rec_whole_dict(Recorder *rec, PyObject *dict)
{
#if PY_VERSION_HEX >= 0x030D0000
    if (((PyDictObject *)dict)->ma_values != NULL) {
        rec->unwatchable = 1;
        return;
    }
#endif
#if PY_VERSION_HEX >= 0x030C0000
    int silent = is_silent(dict);                   /* first: it changes the version */
#else
    int silent = 0;
#endif
    DictRecord *d = dict_record(rec, dict);
    if (d) {
        d->whole = 1;
        d->silent = silent;
    } else {
        rec->failed = !rec->unwatchable;
    }
}

/* Words and no reference: a tuple of modules must not keep them alive. */
void rec_tuple_item(Recorder *rec, PyObject *tuple, Py_ssize_t i)
{
    rec_word(rec, &((PyVarObject *)tuple)->ob_size);
    if (i >= 0 && i < PyTuple_GET_SIZE(tuple))
        rec_word(rec, &((PyTupleObject *)tuple)->ob_item[i]);
}

void rec_hold(Recorder *rec, PyObject *o)
{
    int gc = tc_quiet();
    if (rec->held == NULL)
        rec->held = PyList_New(0);
    tc_loud(gc);
    if (rec->held == NULL || PyList_Append(rec->held, o) < 0) {
        PyErr_Clear();
        rec->failed = 1;
    }
}

/* A dict has a new version: whether what was looked up in it is still what it gives. The values are compared by address
   and type alone. That is sound: whatever a check relied on in such a value is itself recorded (its type word, its dict
   word and that dict's version, which is never used again), weak (the reference's word), or held. */
static int dict_unchanged(Recorder *rec, DictRecord *d)
{
    if (d->whole)
        return 0;
    for (int32_t i = d->first_lookup; i >= 0; i = rec->lookups[i].next) {
        Lookup *k = &rec->lookups[i];
        PyObject *now = tc_dict_get(d->dict, k->key, k->hash, NULL);
        if (now != k->value || (now && Py_TYPE(now) != k->type))
            return 0;
    }
    return 1;
}

void rec_finish(Recorder *rec)
{
#if PY_VERSION_HEX >= 0x030C0000
    if (rec->quick == NULL)
        rec->quick = PyMem_Malloc((size_t)(rec->n_words + 1) * sizeof *rec->quick);
    if (rec->quick == NULL) {
        rec->failed = 1;
        return;
    }
    rec->n_quick = 0;
    for (Py_ssize_t i = 0; i < rec->n_words; i++) {
        int32_t dict = rec->word_dict[i];
        if (dict >= 0 && rec->dicts[dict].silent)
            continue;
        rec->quick[rec->n_quick++] = rec->words[i];
    }
    rec->writes = dict_writes;
#else
    (void)rec;
#endif
}

static int words_unchanged(Recorder *rec)
{
    const Word *w = rec->words, *end = w + rec->n_words;
    for (; w < end; w++) {
#if PY_VERSION_HEX >= 0x030C0000
        int32_t silent = rec->word_dict[w - rec->words];
        if (silent >= 0 && rec->dicts[silent].silent && !PyODict_CheckExact(rec->dicts[silent].dict))
            return 0;
#endif
        if (UNLIKELY(*w->addr != w->value)) {
            int32_t dict = rec->word_dict[w - rec->words];
            if (dict < 0 || !dict_unchanged(rec, &rec->dicts[dict]))
                return 0;
            rec->words[w - rec->words].value = *w->addr;
        }
    }
    return 1;
}

int rec_valid(Recorder *rec)
{
#if PY_VERSION_HEX >= 0x030C0000
    if (LIKELY(rec->writes == dict_writes)) {
        const Word *w = rec->quick, *end = w + rec->n_quick;
        while (w < end && *w->addr == w->value)
            w++;
        if (LIKELY(w == end))
            return 1;
    }
    if (!words_unchanged(rec))
        return 0;
    rec_finish(rec);
    return 1;
#else
    return words_unchanged(rec);
#endif
}
