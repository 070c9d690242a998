#include "runtime/services/safetensors.h"
#include "runtime/services/strict_json.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace sluice {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // As the format says.
constexpr std::size_t kMaxDims = 64;
constexpr const char* kMetadataKey = "__metadata__";
constexpr const char* kRemedy = "; get or write the file again";

struct HeaderEntry {
    std::string name;
    std::optional<DType> dtype;
    std::optional<Dims> shape;
    std::vector<std::uint64_t> offsets;
    bool has_offsets = false;
};

// {"__metadata__": {string: string, ...}, name: {"dtype": string, "shape": [n, ...], "data_offsets": [begin, end]}, ...}
class HeaderHandler final : public StrictJsonHandler {
public:
    std::vector<HeaderEntry> entries;
    SafetensorsMetadata metadata;

    bool start_object(std::size_t) override {
        if (place_ == Place::kStart) {
            place_ = Place::kTop;
            return true;
        }
        if (place_ == Place::kTopValue) {
            place_ = in_metadata_ ? Place::kMetadata : Place::kTensor;
            return true;
        }
        return unexpected("an object");
    }

    bool end_object() override {
        if (place_ == Place::kTensor) {
            const HeaderEntry& entry = entries.back();
            const char* missing = !entry.dtype         ? "dtype"
                                  : !entry.shape       ? "shape"
                                  : !entry.has_offsets ? "data_offsets"
                                                       : nullptr;
            if (missing != nullptr) {
                return fail("tensor " + quote(entry.name) + ": " + missing + " is missing");
            }
        }
        place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
        return true;
    }

    bool key(string_t& name) override {
        switch (place_) {
            case Place::kTop:
                in_metadata_ = name == kMetadataKey;
                if (in_metadata_ && std::exchange(metadata_seen_, true)) {
                    return fail(std::string(kMetadataKey) + " comes twice");
                }
                if (!in_metadata_) {
                    entries.emplace_back().name = std::move(name);
                }
                place_ = Place::kTopValue;
                return true;
            case Place::kMetadata:
                field_ = std::move(name);
                place_ = Place::kMetadataValue;
                return true;
            case Place::kTensor:
                field_ = std::move(name);
                return start_field();
            default:
                return unexpected("the key " + quote(name));
        }
    }

    bool string(string_t& value) override {
        if (place_ == Place::kMetadataValue) {
            place_ = Place::kMetadata;
            if (!metadata.emplace(field_, std::move(value)).second) {
                return fail(std::string(kMetadataKey) + ": key " + quote(field_) + " comes twice");
            }
            return true;
        }
        if (place_ == Place::kDtype) {
            entries.back().dtype = parse_safetensors_dtype(value);
            if (!entries.back().dtype) {
                return fail(where() + "unknown dtype " + quote(value));
            }
            place_ = Place::kTensor;
            return true;
        }
        return unexpected("the string " + quote(value));
    }

    bool start_array(std::size_t) override {
        if (place_ == Place::kShape) {
            place_ = Place::kShapeItems;
            entries.back().shape.emplace();
            return true;
        }
        if (place_ == Place::kOffsets) {
            place_ = Place::kOffsetItems;
            return true;
        }
        return unexpected("an array");
    }

    bool end_array() override {
        HeaderEntry& entry = entries.back();
        if (place_ == Place::kOffsetItems && entry.offsets.size() != 2) {
            return fail(where() + std::to_string(entry.offsets.size()) + " numbers, must be begin and end");
        }
        entry.has_offsets = entry.has_offsets || place_ == Place::kOffsetItems;
        place_ = Place::kTensor;
        return true;
    }

    bool number_unsigned(number_unsigned_t value) override {
        if (place_ == Place::kShapeItems) {
            Dims& shape = *entries.back().shape;
            if (value > static_cast<std::uint64_t>(INT64_MAX)) {
                return fail(where() + "size " + std::to_string(value) + " does not fit in 63 bits");
            }
            if (shape.size() == kMaxDims) {
                return fail(where() + "more than " + std::to_string(kMaxDims) + " dimensions");
            }
            shape.push_back(static_cast<std::int64_t>(value));
            return true;
        }
        if (place_ == Place::kOffsetItems) {
            std::vector<std::uint64_t>& offsets = entries.back().offsets;
            if (offsets.size() == 2) {
                return fail(where() + "more than 2 numbers, must be begin and end");
            }
            offsets.push_back(value);
            return true;
        }
        return unexpected(std::to_string(value));
    }

protected:
    bool unexpected(const std::string& found) override { return fail(where() + "found " + found + ", " + expected()); }

private:
    enum class Place {
        kStart,
        kTop,
        kTopValue,
        kMetadata,
        kMetadataValue,
        kTensor,
        kDtype,
        kShape,
        kShapeItems,
        kOffsets,
        kOffsetItems,
        kEnd,
    };

    bool start_field() {
        HeaderEntry& entry = entries.back();
        const bool known_twice = (field_ == "dtype" && entry.dtype) || (field_ == "shape" && entry.shape) ||
                                 (field_ == "data_offsets" && entry.has_offsets);
        if (known_twice) {
            return fail("tensor " + quote(entry.name) + ": " + field_ + " comes twice");
        }
        if (field_ == "dtype") {
            place_ = Place::kDtype;
        } else if (field_ == "shape") {
            place_ = Place::kShape;
        } else if (field_ == "data_offsets") {
            place_ = Place::kOffsets;
        } else {
            return fail("tensor " + quote(entry.name) + ": unknown field " + quote(field_));
        }
        return true;
    }

    [[nodiscard]] std::string where() const {
        switch (place_) {
            case Place::kStart:
            case Place::kTop:
            case Place::kEnd:
                return "header: ";
            case Place::kTopValue:
                return in_metadata_ ? std::string(kMetadataKey) + ": " : "tensor " + quote(entries.back().name) + ": ";
            case Place::kMetadata:
                return std::string(kMetadataKey) + ": ";
            case Place::kMetadataValue:
                return std::string(kMetadataKey) + ": key " + quote(field_) + ": ";
            case Place::kTensor:
                return "tensor " + quote(entries.back().name) + ": ";
            default:
                return "tensor " + quote(entries.back().name) + ": " + field_ + ": ";
        }
    }

    [[nodiscard]] const char* expected() const {
        switch (place_) {
            case Place::kStart:
            case Place::kTopValue:
                return "must be an object";
            case Place::kMetadataValue:
            case Place::kDtype:
                return "must be a string";
            case Place::kShape:
            case Place::kOffsets:
                return "must be an array of whole numbers >= 0";
            case Place::kShapeItems:
            case Place::kOffsetItems:
                return "must be a whole number >= 0";
            default:
                return "must be a key";
        }
    }

    Place place_ = Place::kStart;
    bool in_metadata_ = false;
    bool metadata_seen_ = false;
    std::string field_;
};

// Shape against span, span against file. On success the tensor's bytes are a part of `data`.
Result<SafetensorsTensor> resolve(HeaderEntry entry, std::span<const std::byte> data) {
    const auto refuse = [&](const std::string& problem) {
        return invalid_argument("tensor " + quote(entry.name) + ": " + problem);
    };
    const std::uint64_t begin = entry.offsets[0];
    const std::uint64_t end = entry.offsets[1];
    const std::string range = "[" + std::to_string(begin) + ", " + std::to_string(end) + "]";
    if (end < begin) {
        return refuse("data_offsets: " + range + " ends before it begins");
    }
    if (end > data.size()) {
        return refuse("data_offsets: " + range + " goes past the end of the data, which has " +
                      std::to_string(data.size()) + " bytes");
    }
    const auto elements = checked_num_elements(*entry.shape);
    const auto bytes = elements ? checked_mul(*elements, size_of(*entry.dtype)) : std::nullopt;
    if (!bytes) {
        return refuse("shape: " + to_string(*entry.shape) + " has more bytes than fit in 64 bits");
    }
    if (static_cast<std::uint64_t>(*bytes) != end - begin) {
        return refuse("shape: " + to_string(*entry.shape) + " of " + std::string(safetensors_name(*entry.dtype)) +
                      " takes " + std::to_string(*bytes) + " bytes, but data_offsets " + range + " span " +
                      std::to_string(end - begin));
    }
    return SafetensorsTensor{std::move(entry.name), *entry.dtype, std::move(*entry.shape),
                             data.subspan(begin, end - begin)};
}

// The format wants the data to be used up without gaps; an overlap would let two tensors share bytes.
Status check_layout(const std::vector<SafetensorsTensor>& tensors, std::span<const std::byte> data) {
    std::vector<const SafetensorsTensor*> order;
    order.reserve(tensors.size());
    for (const SafetensorsTensor& tensor : tensors) {
        order.push_back(&tensor);
    }
    std::sort(order.begin(), order.end(), [](const SafetensorsTensor* a, const SafetensorsTensor* b) {
        return std::pair(a->bytes.data(), a->bytes.size()) < std::pair(b->bytes.data(), b->bytes.size());
    });
    const std::byte* at = data.data();
    for (const SafetensorsTensor* tensor : order) {
        if (tensor->bytes.data() != at) {
            const bool overlap = tensor->bytes.data() < at;
            return invalid_argument("tensor " + quote(tensor->name) + ": data_offsets: begins at " +
                                    std::to_string(tensor->bytes.data() - data.data()) +
                                    (overlap ? ", inside the tensor before it, which ends at "
                                             : ", leaving a hole after the tensor before it, which ends at ") +
                                    std::to_string(at - data.data()));
        }
        at += tensor->bytes.size();
    }
    if (at != data.data() + data.size()) {
        return invalid_argument("data: " + std::to_string(data.data() + data.size() - at) +
                                " bytes after the last tensor belong to none");
    }
    return ok_status();
}

Result<SafetensorsContents> parse(std::span<const std::byte> file) {
    if (file.size() < kLengthBytes) {
        return invalid_argument("header length: the file has " + std::to_string(file.size()) +
                                " bytes, fewer than the 8 of the length");
    }
    std::uint64_t length = 0;
    for (std::size_t i = kLengthBytes; i-- > 0;) {
        length = length << 8 | std::to_integer<std::uint64_t>(file[i]);
    }
    if (length > kMaxHeaderBytes) {
        return invalid_argument("header length: " + std::to_string(length) + " is above the format's limit of " +
                                std::to_string(kMaxHeaderBytes));
    }
    if (length > file.size() - kLengthBytes) {
        return invalid_argument("header length: " + std::to_string(length) +
                                " goes past the end of the file, which has " + std::to_string(file.size()) + " bytes");
    }
    if (length < 2) {
        return invalid_argument("header length: " + std::to_string(length) + " is too short for a header");
    }
    HeaderHandler handler;
    if (!parse_json_object(file.subspan(kLengthBytes, length), handler)) {
        return invalid_argument(handler.error());
    }
    const auto data = file.subspan(kLengthBytes + length);
    SafetensorsContents contents;
    contents.metadata = std::move(handler.metadata);
    contents.tensors.reserve(handler.entries.size());
    for (HeaderEntry& entry : handler.entries) {
        SLUICE_ASSIGN_OR_RETURN(auto tensor, resolve(std::move(entry), data));
        contents.tensors.push_back(std::move(tensor));
    }
    std::sort(contents.tensors.begin(), contents.tensors.end(),
              [](const SafetensorsTensor& a, const SafetensorsTensor& b) { return a.name < b.name; });
    const auto twice =
        std::adjacent_find(contents.tensors.begin(), contents.tensors.end(),
                           [](const SafetensorsTensor& a, const SafetensorsTensor& b) { return a.name == b.name; });
    if (twice != contents.tensors.end()) {
        return invalid_argument("tensor " + quote(twice->name) + ": the name comes twice");
    }
    SLUICE_RETURN_IF_ERROR(check_layout(contents.tensors, data));
    return contents;
}

}  // namespace

Result<SafetensorsContents> parse_safetensors(std::span<const std::byte> file, const std::string& where) {
    auto contents = parse(file);
    if (!contents.ok()) {
        return invalid_argument(where + ": " + contents.status().message() + kRemedy);
    }
    return contents;
}

}  // namespace sluice
