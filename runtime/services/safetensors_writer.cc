#include "runtime/services/safetensors.h"
#include "runtime/services/strict_json.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace sluice {
namespace {

namespace fs = std::filesystem;

// A file under a temporary name that goes away unless it is renamed.
class TemporaryFile {
public:
    explicit TemporaryFile(const fs::path& target)
        : target_(target), path_(target.string() + ".partial-" + std::to_string(::getpid())) {}
    ~TemporaryFile() {
        if (descriptor_ >= 0) {
            ::close(descriptor_);
            ::unlink(path_.c_str());
        }
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;

    Status create() {
        descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        return descriptor_ >= 0 ? ok_status() : failed();
    }
    Status write(std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
            if (written < 0 && errno != EINTR) {
                return failed();
            }
            bytes = bytes.subspan(written > 0 ? static_cast<std::size_t>(written) : 0);
        }
        return ok_status();
    }
    Status finish() {
        // A full disk may show only here.
        if (::close(std::exchange(descriptor_, -1)) != 0 || ::rename(path_.c_str(), target_.c_str()) != 0) {
            Status status = failed();
            ::unlink(path_.c_str());
            return status;
        }
        return ok_status();
    }

private:
    [[nodiscard]] Status failed() const {
        return invalid_argument(target_.string() + ": cannot write: " + std::generic_category().message(errno));
    }

    fs::path target_;
    std::string path_;
    int descriptor_ = -1;
};

Result<std::string> make_header(const std::vector<const SafetensorsTensor*>& order, const SafetensorsMetadata& metadata,
                                const fs::path& path) {
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    if (!metadata.empty()) {
        header["__metadata__"] = metadata;
    }
    std::size_t offset = 0;
    // Built by push_back, since looking a key up in an ordered object is linear.
    auto& fields = header.get_ref<nlohmann::ordered_json::object_t&>();
    for (const SafetensorsTensor* tensor : order) {
        fields.push_back({tensor->name,
                          {{"dtype", safetensors_name(tensor->dtype)},
                           {"shape", std::vector<std::int64_t>(tensor->shape.begin(), tensor->shape.end())},
                           {"data_offsets", {offset, offset + tensor->bytes.size()}}}});
        offset += tensor->bytes.size();
    }
    try {
        std::string text = header.dump();
        text.resize((text.size() + 7) / 8 * 8, ' ');
        return text;
    } catch (const nlohmann::json::type_error&) {
        return invalid_argument(path.string() + ": cannot write: a name or a metadata value is no valid UTF-8");
    }
}

}  // namespace

Status write_safetensors(const fs::path& path, std::span<const SafetensorsTensor> tensors,
                         const SafetensorsMetadata& metadata) {
    std::vector<const SafetensorsTensor*> order;
    for (const SafetensorsTensor& tensor : tensors) {
        const auto elements = checked_num_elements(tensor.shape);
        const auto bytes = elements ? checked_mul(*elements, size_of(tensor.dtype)) : std::nullopt;
        if (!bytes || static_cast<std::size_t>(*bytes) != tensor.bytes.size()) {
            return invalid_argument(path.string() + ": cannot write: tensor " + quote(tensor.name) + ": shape " +
                                    to_string(tensor.shape) + " of " + std::string(to_string(tensor.dtype)) +
                                    " does not take the given " + std::to_string(tensor.bytes.size()) + " bytes");
        }
        order.push_back(&tensor);
    }
    std::sort(order.begin(), order.end(),
              [](const SafetensorsTensor* a, const SafetensorsTensor* b) { return a->name < b->name; });
    const auto twice =
        std::adjacent_find(order.begin(), order.end(),
                           [](const SafetensorsTensor* a, const SafetensorsTensor* b) { return a->name == b->name; });
    if (twice != order.end()) {
        return invalid_argument(path.string() + ": cannot write: tensor " + quote((*twice)->name) +
                                ": the name comes twice");
    }
    std::sort(order.begin(), order.end(), [](const SafetensorsTensor* a, const SafetensorsTensor* b) {
        return std::pair(-size_of(a->dtype), std::string_view(a->name)) <
               std::pair(-size_of(b->dtype), std::string_view(b->name));
    });
    SLUICE_ASSIGN_OR_RETURN(const std::string header, make_header(order, metadata, path));

    std::byte length[8];
    for (std::size_t i = 0; i < sizeof(length); ++i) {
        length[i] = static_cast<std::byte>(header.size() >> (8 * i));
    }
    TemporaryFile file(path);
    SLUICE_RETURN_IF_ERROR(file.create());
    SLUICE_RETURN_IF_ERROR(file.write(length));
    SLUICE_RETURN_IF_ERROR(file.write(std::as_bytes(std::span(header))));
    for (const SafetensorsTensor* tensor : order) {
        SLUICE_RETURN_IF_ERROR(file.write(tensor->bytes));
    }
    return file.finish();
}

}  // namespace sluice
