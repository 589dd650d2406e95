/* Rows of the catalogue from a JSON list of item names, without decoding it. The reference implementation decodes the list
 * and asks `Catalog.row` (serving/candidates.py).
 *
 * Supported are lists of plain strings (no escapes, ASCII only, 1 to MAX_NAME characters) and of whole numbers of at most
 * MAX_DIGITS digits, which stand for their text; no name twice, at most MAX_UNKNOWN unknown names. Anything else is NOT_PLAIN;
 * the reference implementation then reads it, or explains what is wrong.
 */
#include <stdint.h>
#include <string.h>

enum { UNKNOWN_ROW = 1, FIRST_ITEM_ROW = 2 }; /* as in types/catalog.py */
enum { MAX_NAME = 256, MAX_DIGITS = 18, MAX_UNKNOWN = 32, NOT_PLAIN = -1 };

/* The names of a catalogue, one after another, and a hash table of their numbers. Mirrored by `_Names` in names.py. */
struct names {
    const char *text;
    const int64_t *ends; /* (count + 1,): name n is text[ends[n]] to text[ends[n + 1]] */
    int32_t *slots;      /* (size,): numbers of names, -1 where empty; size is a power of two above count */
    int64_t count, size;
};

/* The names in a list. Mirrored by `_Found` in names.py. */
struct found {
    int32_t *rows;    /* (capacity,) out: catalogue rows */
    int32_t *spans;   /* (capacity, 2) out: where each name begins and ends in the JSON */
    uint8_t *packed;  /* out: the list as MessagePack; needs the length of the JSON plus 3 bytes */
    int32_t *last;    /* (count + FIRST_ITEM_ROW,): index at which a row was found last, in this or an earlier list */
    int64_t capacity; /* names that fit */
    int64_t packed_length; /* out */
};

#define EXPORT __attribute__((visibility("default")))
#define REPEAT(byte) (0x0101010101010101u * (byte)) /* the byte in all eight bytes of a word */

static uint64_t mix(uint64_t bits, uint64_t word) {
    bits = (bits ^ word) * 0x9e3779b97f4a7c15u;
    return bits ^ bits >> 32;
}

/* The first eight characters as a word, padded with spaces. */
static uint64_t first_word(const char *name, int64_t length) {
    uint64_t word = REPEAT(' ');
    if (length >= 8) {
        memcpy(&word, name, 8);
        return word;
    }
    for (int64_t n = 0; n < length; n++) word = word << 8 | (uint8_t)name[n];
    return word;
}

static uint64_t hash(const char *name, int64_t length) {
    uint64_t bits = (uint64_t)length;
    for (int64_t at = 0; at < length; at += 8) bits = mix(bits, first_word(name + at, length - at));
    return mix(bits, 0); /* once more: the last characters of a name have not reached the lowest bits yet */
}

/* Whether none of eight characters is a backslash, a control character or beyond ASCII. */
static int is_plain(uint64_t word) {
    uint64_t escape = word ^ REPEAT('\\');
    uint64_t bad = word | ((word - REPEAT(' ')) & ~word) | ((escape - REPEAT(1)) & ~escape);
    return !(bad & REPEAT(0x80));
}

/* Fill the hash table. */
EXPORT void mbcal_names_1(struct names *names) {
    for (int64_t n = 0; n < names->count; n++) {
        uint64_t at = hash(names->text + names->ends[n], names->ends[n + 1] - names->ends[n]);
        while (names->slots[at & (names->size - 1)] >= 0) at++;
        names->slots[at & (names->size - 1)] = (int32_t)n;
    }
}

/* The catalogue row of a name, or UNKNOWN_ROW. */
static int32_t row_of(const struct names *names, const char *name, int64_t length) {
    for (uint64_t at = hash(name, length);; at++) {
        int32_t n = names->slots[at & (names->size - 1)];
        if (n < 0) return UNKNOWN_ROW;
        int64_t begin = names->ends[n];
        if (names->ends[n + 1] - begin == length && !memcmp(names->text + begin, name, length)) return n + FIRST_ITEM_ROW;
    }
}

/* Whether a name is among the `count` names found so far. Known names are compared by row, unknown ones by text. */
static int is_repeated(const struct found *found, const char *json, int64_t count, int32_t row, const int32_t *span) {
    if (row != UNKNOWN_ROW) return found->last[row] < count && found->rows[found->last[row]] == row;
    for (int64_t n = 0; n < count; n++) {
        const int32_t *other = found->spans + 2 * n;
        int32_t length = other[1] - other[0];
        if (found->rows[n] == UNKNOWN_ROW && length == span[1] - span[0] && !memcmp(json + other[0], json + span[0], length))
            return 1;
    }
    return 0;
}

static int64_t skip_blank(const char *json, int64_t at, int64_t length) {
    while (at < length && (json[at] == ' ' || json[at] == '\n' || json[at] == '\r' || json[at] == '\t')) at++;
    return at;
}

/* The end of the string whose first character is at `at`; NOT_PLAIN if it is not a plain one. */
static int64_t string_end(const char *json, int64_t at, int64_t length) {
    const char *end = memchr(json + at, '"', length - at);
    int64_t size = end ? end - json - at : 0;
    if (size < 1 || size > MAX_NAME) return NOT_PLAIN;
    for (int64_t n = 0; n < size; n += 8)
        if (!is_plain(first_word(json + at + n, size - n))) return NOT_PLAIN;
    return at + size;
}

/* Where the whole number that begins at `at` ends; NOT_PLAIN if its digits are not its text (-0, 007) or are too many. */
static int64_t number_end(const char *json, int64_t at, int64_t length) {
    int64_t first = at + (json[at] == '-'), end = first;
    while (end < length && end - first <= MAX_DIGITS && json[end] >= '0' && json[end] <= '9') end++;
    if (end == first || end - first > MAX_DIGITS || (json[first] == '0' && end - at > 1)) return NOT_PLAIN;
    return end;
}

/* Append a string as MessagePack; returns where the next one goes. */
static uint8_t *pack(uint8_t *to, const char *name, int64_t length) {
    if (length < 32) {
        *to++ = (uint8_t)(0xa0 | length);
    } else if (length < 256) {
        *to++ = 0xd9, *to++ = (uint8_t)length;
    } else {
        *to++ = 0xda, *to++ = (uint8_t)(length >> 8), *to++ = (uint8_t)length;
    }
    memcpy(to, name, length);
    return to + length;
}

/* Fill `found` from a JSON list; returns the number of names, or NOT_PLAIN. */
EXPORT int64_t mbcal_find_1(const struct names *names, const char *json, int64_t length, struct found *found) {
    uint8_t *to = found->packed + 3;
    int64_t count = 0, unknown = 0, at = skip_blank(json, 0, length);
    if (at >= length || json[at] != '[') return NOT_PLAIN;
    do {
        at = skip_blank(json, at + 1, length);
        if (at >= length || count == found->capacity) return NOT_PLAIN;
        int64_t is_string = json[at] == '"', begin = at + is_string;
        int64_t end = is_string ? string_end(json, begin, length) : number_end(json, begin, length);
        if (end < 0) return NOT_PLAIN;
        int32_t row = row_of(names, json + begin, end - begin), *span = found->spans + 2 * count;
        span[0] = (int32_t)begin, span[1] = (int32_t)end;
        unknown += row == UNKNOWN_ROW;
        if (unknown > MAX_UNKNOWN || is_repeated(found, json, count, row, span)) return NOT_PLAIN;
        found->last[row] = (int32_t)count;
        found->rows[count++] = row;
        to = pack(to, json + begin, end - begin);
        at = skip_blank(json, end + is_string, length);
    } while (at < length && json[at] == ',');
    if (at >= length || json[at] != ']' || skip_blank(json, at + 1, length) != length) return NOT_PLAIN;
    found->packed[0] = 0xdc, found->packed[1] = (uint8_t)(count >> 8), found->packed[2] = (uint8_t)count;
    found->packed_length = to - found->packed;
    return count;
}
