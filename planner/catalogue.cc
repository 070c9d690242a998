#include "planner/catalogue.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <memory>

namespace sluice {

namespace {

constexpr std::string_view kLanguagePrefixes[] = {"language_model.", ""};

std::uint64_t hash_name(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

/// The number of "layers.N." at the start of `rest`, or -1.
std::int64_t layer_number(std::string_view rest) {
    constexpr std::string_view kLayers = "layers.";
    if (!rest.starts_with(kLayers)) {
        return -1;
    }
    rest.remove_prefix(kLayers.size());
    std::int64_t layer = -1;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    if (error != std::errc() || layer < 0 || end == rest.data() + rest.size() || *end != '.') {
        return -1;
    }
    return layer;
}

class Digest {
public:
    Digest() : state_(XXH3_createState(), &XXH3_freeState) { XXH3_64bits_reset(state_.get()); }

    void add(std::uint64_t value) {
        // Byte by byte, so that the digest does not depend on the machine's byte order.
        std::array<unsigned char, 8> bytes{};
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            bytes[i] = static_cast<unsigned char>(value >> (8 * i));
        }
        XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
    }
    void add(std::string_view text) {
        add(text.size());
        XXH3_64bits_update(state_.get(), text.data(), text.size());
    }
    [[nodiscard]] std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

private:
    std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

Status check_size(const CatalogueTensor& tensor) {
    const std::optional<std::int64_t> elements = checked_num_elements(tensor.shape);
    if (!elements || !checked_mul(*elements, size_of(tensor.dtype))) {
        return invalid_argument(fmt::format("tensor {}: shape {} of {} has no size in 64 bits; check the shape",
                                            tensor.name, to_string(std::span<const std::int64_t>(tensor.shape)),
                                            to_string(tensor.dtype)));
    }
    return ok_status();
}

}  // namespace

GroupId group_of(std::string_view tensor_name, int layers) {
    for (const std::string_view prefix : kLanguagePrefixes) {
        if (!tensor_name.starts_with(prefix)) {
            continue;
        }
        std::string_view rest = tensor_name.substr(prefix.size());
        if (rest.starts_with("lm_head.")) {
            return layers + 1;
        }
        if (!rest.starts_with("model.")) {
            continue;
        }
        rest.remove_prefix(std::string_view("model.").size());
        if (rest.starts_with("norm.")) {
            return layers + 1;
        }
        // Layers behind the last one are no part of the stack (multi-token prediction): group 0, like the rest.
        const std::int64_t layer = layer_number(rest);
        return layer >= 0 && layer < layers ? static_cast<GroupId>(layer + 1) : 0;
    }
    return 0;
}

Result<Catalogue> Catalogue::create(std::vector<CatalogueTensor> tensors, int layers) {
    if (layers < 0 || tensors.size() > static_cast<std::size_t>(std::numeric_limits<TensorId>::max())) {
        return invalid_argument(
            fmt::format("a catalogue of {} layers and {} tensors: too large, or negative", layers, tensors.size()));
    }
    std::int64_t total = 0;
    for (CatalogueTensor& tensor : tensors) {
        SLUICE_RETURN_IF_ERROR(check_size(tensor));
        const std::optional<std::int64_t> sum = checked_add(total, tensor.bytes());
        if (!sum) {
            return invalid_argument(
                fmt::format("tensor {}: the model's bytes leave 64 bits here; check the shapes", tensor.name));
        }
        total = *sum;
        tensor.group = group_of(tensor.name, layers);
    }
    std::sort(tensors.begin(), tensors.end(), [](const CatalogueTensor& a, const CatalogueTensor& b) {
        return a.group != b.group ? a.group < b.group : a.name < b.name;
    });

    Catalogue catalogue;
    catalogue.tensors_ = std::move(tensors);
    catalogue.groups_ = layers + 2;
    catalogue.bytes_ = total;
    std::size_t slots = 16;
    while (slots < catalogue.tensors_.size() * 2) {
        slots *= 2;
    }
    catalogue.slots_.assign(slots, -1);
    Digest digest;
    digest.add(catalogue.tensors_.size());
    for (std::size_t id = 0; id < catalogue.tensors_.size(); ++id) {
        const CatalogueTensor& tensor = catalogue.tensors_[id];
        if (id > 0 && catalogue.tensors_[id - 1].name == tensor.name) {
            return invalid_argument(fmt::format("tensor {} is listed twice", tensor.name));
        }
        std::size_t slot = hash_name(tensor.name) & (slots - 1);
        while (catalogue.slots_[slot] >= 0) {
            slot = (slot + 1) & (slots - 1);
        }
        catalogue.slots_[slot] = static_cast<TensorId>(id);
        digest.add(tensor.name);
        digest.add(to_string(tensor.dtype));
        digest.add(tensor.shape.size());
        for (const std::int64_t size : tensor.shape) {
            digest.add(static_cast<std::uint64_t>(size));
        }
    }
    catalogue.digest_ = digest.value();
    for (const CatalogueTensor& tensor : catalogue.tensors_) {
        if (!tensor.tied_to.empty() && !catalogue.find(tensor.tied_to)) {
            return invalid_argument(
                fmt::format("tensor {} is tied to {}, which does not exist", tensor.name, tensor.tied_to));
        }
    }
    return catalogue;
}

std::optional<TensorId> Catalogue::find(std::string_view name) const {
    if (slots_.empty()) {
        return std::nullopt;
    }
    std::size_t slot = hash_name(name) & (slots_.size() - 1);
    while (slots_[slot] >= 0) {
        if (tensors_[static_cast<std::size_t>(slots_[slot])].name == name) {
            return slots_[slot];
        }
        slot = (slot + 1) & (slots_.size() - 1);
    }
    return std::nullopt;
}

}  // namespace sluice
