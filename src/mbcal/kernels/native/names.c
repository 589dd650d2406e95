/* Names of items to rows of the catalogue, straight from a request's JSON: the twin of decoding a list of texts and of
 * `Catalog.row`.
 *
 * What is read is a list of plain texts (no escapes, nothing beyond ASCII, 1 to LONGEST letters) and whole numbers of at most
 * DIGITS digits, which stand for their text; no name twice, no more than STRANGERS unknown ones. Anything else is NOT_PLAIN,
 * and the twin reads it, or says what is wrong with it.
 */
#include <stdint.h>
#include <string.h>

enum { UNKNOWN = 1, SPECIAL = 2 }; /* as in types/catalog.py */
enum { LONGEST = 256, DIGITS = 18, STRANGERS = 32, NOT_PLAIN = -1 };

/* Mirrored by `_Names` in names.py: all names one after another, and a hash table of their numbers, -1 where it is empty. */
struct names {
    const char *text;
    const int64_t *ends; /* (count + 1,): name n is text[ends[n]] to text[ends[n + 1]] */
    int32_t *slots;      /* (size,), a power of two and more than count */
    int64_t count, size;
};

/* Mirrored by `_Found` in names.py. */
struct found {
    int32_t *rows;         /* (most,): of the catalogue */
    int32_t *spans;        /* (most, 2): where in the JSON each name begins and ends */
    uint8_t *packed;       /* the same list as MessagePack; as long as the JSON and 3 bytes more */
    int32_t *last;         /* (count + SPECIAL,): where a row was found last, in this list or an earlier one */
    int64_t most;
    int64_t packed_length; /* out */
};

#define EXPORT __attribute__((visibility("default")))
#define EACH(byte) (0x0101010101010101u * (byte))

static uint64_t mix(uint64_t made, uint64_t word) {
    made = (made ^ word) * 0x9e3779b97f4a7c15u;
    return made ^ made >> 32;
}

/* Up to eight letters as a number; what is missing are spaces. */
static uint64_t letters(const char *name, int64_t length) {
    uint64_t word = EACH(' ');
    if (length >= 8) {
        memcpy(&word, name, 8);
        return word;
    }
    for (int64_t n = 0; n < length; n++) word = word << 8 | (uint8_t)name[n];
    return word;
}

static uint64_t hash(const char *name, int64_t length) {
    uint64_t made = (uint64_t)length;
    for (int64_t at = 0; at < length; at += 8) made = mix(made, letters(name + at, length - at));
    return mix(made, 0); /* names may differ in their last letters alone, which one turn leaves out of the lowest bits */
}

/* Whether eight letters are neither escapes, nor beyond ASCII, nor control characters. */
static int are_plain(uint64_t word) {
    uint64_t escape = word ^ EACH('\\');
    uint64_t bad = word | ((word - EACH(' ')) & ~word) | ((escape - EACH(1)) & ~escape);
    return !(bad & EACH(0x80));
}

EXPORT void mbcal_names_1(struct names *names) {
    for (int64_t n = 0; n < names->count; n++) {
        uint64_t at = hash(names->text + names->ends[n], names->ends[n + 1] - names->ends[n]);
        while (names->slots[at & (names->size - 1)] >= 0) at++;
        names->slots[at & (names->size - 1)] = (int32_t)n;
    }
}

static int32_t row_of(const struct names *names, const char *name, int64_t length) {
    for (uint64_t at = hash(name, length);; at++) {
        int32_t n = names->slots[at & (names->size - 1)];
        if (n < 0) return UNKNOWN;
        int64_t begin = names->ends[n];
        if (names->ends[n + 1] - begin == length && !memcmp(names->text + begin, name, length)) return n + SPECIAL;
    }
}

/* Whether one of the `count` names found so far is the same. Rows tell; names nobody knows have to be compared. */
static int is_there(const struct found *found, const char *json, int64_t count, int32_t row, const int32_t *span) {
    if (row != UNKNOWN) return found->last[row] < count && found->rows[found->last[row]] == row;
    for (int64_t n = 0; n < count; n++) {
        const int32_t *other = found->spans + 2 * n;
        int32_t length = other[1] - other[0];
        if (found->rows[n] == UNKNOWN && length == span[1] - span[0] && !memcmp(json + other[0], json + span[0], length))
            return 1;
    }
    return 0;
}

static int64_t skip_blank(const char *json, int64_t at, int64_t length) {
    while (at < length && (json[at] == ' ' || json[at] == '\n' || json[at] == '\r' || json[at] == '\t')) at++;
    return at;
}

/* Where the text whose first letter is at `at` ends; NOT_PLAIN if it is none. */
static int64_t text_end(const char *json, int64_t at, int64_t length) {
    const char *end = memchr(json + at, '"', length - at);
    int64_t size = end ? end - json - at : 0;
    if (size < 1 || size > LONGEST) return NOT_PLAIN;
    for (int64_t n = 0; n < size; n += 8)
        if (!are_plain(letters(json + at + n, size - n))) return NOT_PLAIN;
    return at + size;
}

/* Where the whole number that begins at `at` ends; NOT_PLAIN if its digits are not its text (-0, 007) or are too many. */
static int64_t number_end(const char *json, int64_t at, int64_t length) {
    int64_t first = at + (json[at] == '-'), end = first;
    while (end < length && end - first <= DIGITS && json[end] >= '0' && json[end] <= '9') end++;
    if (end == first || end - first > DIGITS || (json[first] == '0' && end - at > 1)) return NOT_PLAIN;
    return end;
}

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

/* How many names the JSON holds, with their rows, their places in it and the list as MessagePack; or NOT_PLAIN. */
EXPORT int64_t mbcal_find_1(const struct names *names, const char *json, int64_t length, struct found *found) {
    uint8_t *to = found->packed + 3;
    int64_t count = 0, strangers = 0, at = skip_blank(json, 0, length);
    if (at >= length || json[at] != '[') return NOT_PLAIN;
    do {
        at = skip_blank(json, at + 1, length);
        if (at >= length || count == found->most) return NOT_PLAIN;
        int64_t quote = json[at] == '"', begin = at + quote;
        int64_t end = quote ? text_end(json, begin, length) : number_end(json, begin, length);
        if (end < 0) return NOT_PLAIN;
        int32_t row = row_of(names, json + begin, end - begin), *span = found->spans + 2 * count;
        span[0] = (int32_t)begin, span[1] = (int32_t)end;
        strangers += row == UNKNOWN;
        if (strangers > STRANGERS || is_there(found, json, count, row, span)) return NOT_PLAIN;
        found->last[row] = (int32_t)count;
        found->rows[count++] = row;
        to = pack(to, json + begin, end - begin);
        at = skip_blank(json, end + quote, length);
    } while (at < length && json[at] == ',');
    if (at >= length || json[at] != ']' || skip_blank(json, at + 1, length) != length) return NOT_PLAIN;
    found->packed[0] = 0xdc, found->packed[1] = (uint8_t)(count >> 8), found->packed[2] = (uint8_t)count;
    found->packed_length = to - found->packed;
    return count;
}
