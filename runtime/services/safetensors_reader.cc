#include "runtime/services/safetensors.h"
#include "runtime/services/strict_json.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <iterator>
#include <numeric>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr std::size_t kMaxIndexBytes = 100'000'000;
constexpr std::size_t kMaxDepth = 64;

Status cannot(const char* action, const fs::path& path, const std::string& why) {
    return invalid_argument(path.string() + ": cannot " + action + ": " + why);
}

// {"metadata": anything, "weight_map": {tensor: file, ...}}
class IndexHandler final : public StrictJsonHandler {
public:
    std::vector<std::pair<std::string, std::string>> weight_map;
    [[nodiscard]] bool has_weight_map() const { return has_weight_map_; }

    bool null() override { return skip() || unexpected("null"); }
    bool boolean(bool value) override { return skip() || StrictJsonHandler::boolean(value); }
    bool number_integer(number_integer_t value) override { return skip() || StrictJsonHandler::number_integer(value); }
    bool number_unsigned(number_unsigned_t value) override {
        return skip() || StrictJsonHandler::number_unsigned(value);
    }
    bool number_float(number_float_t value, const string_t& text) override {
        return skip() || StrictJsonHandler::number_float(value, text);
    }
    bool string(string_t& value) override {
        if (in_weight_map_ && depth_ == 2) {
            weight_map.emplace_back(std::move(key_), std::move(value));
            return true;
        }
        return skip() || StrictJsonHandler::string(value);
    }
    bool key(string_t& name) override {
        if (depth_ == 1) {
            in_weight_map_ = name == "weight_map";
            if (in_weight_map_ && std::exchange(has_weight_map_, true)) {
                return fail("weight_map comes twice");
            }
        }
        if (depth_ == 1 || in_weight_map_) {
            key_ = std::move(name);
        }
        return true;
    }
    bool start_object(std::size_t) override {
        const bool wanted = depth_ == 0 || depth_ == 1;
        return wanted || skip() ? enter() : unexpected("an object");
    }
    bool start_array(std::size_t) override { return skip() ? enter() : unexpected("an array"); }
    bool end_object() override { return leave(); }
    bool end_array() override { return leave(); }

protected:
    bool unexpected(const std::string& found) override {
        return fail("weight_map" + (depth_ >= 2 ? ": tensor " + quote(key_) : std::string()) + ": found " + found +
                    (depth_ >= 2 ? ", must be a file name" : ", must be an object"));
    }

private:
    [[nodiscard]] bool skip() const { return depth_ >= 1 && !in_weight_map_; }
    bool enter() { return ++depth_ <= kMaxDepth || fail("nested more than " + std::to_string(kMaxDepth) + " deep"); }
    bool leave() {
        --depth_;
        return true;
    }

    std::size_t depth_ = 0;
    bool in_weight_map_ = false;
    bool has_weight_map_ = false;
    std::string key_;
};

}  // namespace

class SafetensorsReader::Mapping {
public:
    static Result<std::unique_ptr<Mapping>> map(const fs::path& path) {
        const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (descriptor < 0) {
            return cannot("open", path, std::generic_category().message(errno));
        }
        auto mapping = map_descriptor(path, descriptor);
        ::close(descriptor);
        return mapping;
    }
    ~Mapping() {
        if (size_ != 0) {
            ::munmap(data_, size_);
        }
    }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    [[nodiscard]] std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

private:
    Mapping(void* data, std::size_t size) : data_(data), size_(size) {}

    static Result<std::unique_ptr<Mapping>> map_descriptor(const fs::path& path, int descriptor) {
        struct stat info = {};
        if (::fstat(descriptor, &info) != 0) {
            return cannot("read", path, std::generic_category().message(errno));
        }
        if (!S_ISREG(info.st_mode)) {
            return cannot("read", path, "it is no ordinary file");
        }
        const auto size = static_cast<std::size_t>(info.st_size);
        if (size == 0) {
            return std::unique_ptr<Mapping>(new Mapping(nullptr, 0));
        }
        void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (data == MAP_FAILED) {
            return cannot("map", path, std::generic_category().message(errno));
        }
        return std::unique_ptr<Mapping>(new Mapping(data, size));
    }

    void* data_;
    std::size_t size_;
};

SafetensorsReader::SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;
SafetensorsReader::~SafetensorsReader() = default;

Result<SafetensorsReader> SafetensorsReader::open(const fs::path& path) {
    SafetensorsReader reader;
    std::error_code error;
    if (fs::is_directory(path, error)) {
        SLUICE_RETURN_IF_ERROR(reader.open_directory(path));
    } else {
        std::vector<std::size_t> tensor_files;
        SLUICE_RETURN_IF_ERROR(reader.add_file(path, tensor_files));
    }
    return reader;
}

Status SafetensorsReader::add_file(const fs::path& path, std::vector<std::size_t>& tensor_files) {
    SLUICE_ASSIGN_OR_RETURN(auto mapping, Mapping::map(path));
    SLUICE_ASSIGN_OR_RETURN(auto contents, parse_safetensors(mapping->bytes(), path.string()));
    tensor_files.insert(tensor_files.end(), contents.tensors.size(), files_.size());
    std::move(contents.tensors.begin(), contents.tensors.end(), std::back_inserter(tensors_));
    metadata_.merge(contents.metadata);
    mappings_.push_back(std::move(mapping));
    files_.push_back(path);
    return ok_status();
}

namespace {

using WeightMap = std::vector<std::pair<std::string, std::string>>;

// Sorted by tensor name; every file name is one of a file right in the directory.
Result<WeightMap> parse_index(std::span<const std::byte> text, const fs::path& path) {
    if (text.size() > kMaxIndexBytes) {
        return invalid_argument(path.string() + ": has " + std::to_string(text.size()) +
                                " bytes, more than an index of " + std::to_string(kMaxIndexBytes));
    }
    IndexHandler handler;
    if (!parse_json_object(text, handler)) {
        return invalid_argument(path.string() + ": " + handler.error());
    }
    if (!handler.has_weight_map()) {
        return invalid_argument(path.string() + ": weight_map is missing");
    }
    WeightMap weight_map = std::move(handler.weight_map);
    std::sort(weight_map.begin(), weight_map.end());
    for (std::size_t i = 0; i < weight_map.size(); ++i) {
        const auto& [tensor, file] = weight_map[i];
        if (i > 0 && weight_map[i - 1].first == tensor) {
            return invalid_argument(path.string() + ": weight_map: tensor " + quote(tensor) + ": the name comes twice");
        }
        if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
            file.find('\0') != std::string::npos) {
            return invalid_argument(path.string() + ": weight_map: tensor " + quote(tensor) + ": " + quote(file) +
                                    " is no file name inside the directory");
        }
    }
    return weight_map;
}

Result<std::vector<fs::path>> files_without_index(const fs::path& directory) {
    std::vector<fs::path> files;
    std::error_code error;
    for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
        if (entry->path().extension() == ".safetensors") {
            files.push_back(entry->path());
        }
    }
    if (error) {
        return cannot("list", directory, error.message());
    }
    if (files.empty()) {
        return invalid_argument(directory.string() + ": has no .safetensors file and no " + kIndexName);
    }
    std::sort(files.begin(), files.end());
    return files;
}

}  // namespace

Status SafetensorsReader::open_directory(const fs::path& directory) {
    const fs::path index = directory / kIndexName;
    std::error_code error;
    const bool indexed = fs::exists(fs::symlink_status(index, error));
    WeightMap weight_map;
    std::vector<fs::path> files;
    if (indexed) {
        SLUICE_ASSIGN_OR_RETURN(const auto mapping, Mapping::map(index));
        SLUICE_ASSIGN_OR_RETURN(weight_map, parse_index(mapping->bytes(), index));
        for (const auto& [tensor, file] : weight_map) {
            files.push_back(directory / file);
        }
        std::sort(files.begin(), files.end());
        files.erase(std::unique(files.begin(), files.end()), files.end());
    } else {
        SLUICE_ASSIGN_OR_RETURN(files, files_without_index(directory));
    }
    std::vector<std::size_t> tensor_files;
    for (const fs::path& file : files) {
        Status status = add_file(file, tensor_files);
        if (!status.ok()) {
            return indexed && !fs::exists(file, error)
                       ? invalid_argument(index.string() + ": weight_map: names " + quote(file.filename().string()) +
                                          ", which is not in the directory; get the missing shard")
                       : status;
        }
    }

    std::vector<std::size_t> order(tensors_.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::tie(tensors_[a].name, a) < std::tie(tensors_[b].name, b);
    });
    std::vector<SafetensorsTensor> sorted;
    sorted.reserve(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
        if (!sorted.empty() && sorted.back().name == tensors_[order[i]].name) {
            return invalid_argument(directory.string() + ": tensor " + quote(sorted.back().name) + ": is in " +
                                    quote(files_[tensor_files[order[i - 1]]].filename().string()) + " and in " +
                                    quote(files_[tensor_files[order[i]]].filename().string()) + "; keep one of them");
        }
        sorted.push_back(std::move(tensors_[order[i]]));
    }
    tensors_ = std::move(sorted);
    if (!indexed) {
        return ok_status();
    }

    // Both are sorted by name: walk them together.
    std::size_t at = 0;
    for (std::size_t i = 0; i < tensors_.size() || at < weight_map.size();) {
        const bool has_tensor = i < tensors_.size();
        const bool has_entry = at < weight_map.size();
        if (!has_entry || (has_tensor && tensors_[i].name < weight_map[at].first)) {
            return invalid_argument(index.string() + ": weight_map: tensor " + quote(tensors_[i].name) + " of " +
                                    quote(files_[tensor_files[order[i]]].filename().string()) +
                                    " is not in it; index and shards are not of one checkpoint");
        }
        const auto& [name, file] = weight_map[at];
        if (!has_tensor || name < tensors_[i].name || files_[tensor_files[order[i]]].filename() != file) {
            return invalid_argument(index.string() + ": weight_map: tensor " + quote(name) + " is not in " +
                                    quote(file) + "; index and shards are not of one checkpoint");
        }
        ++i;
        ++at;
    }
    return ok_status();
}

const SafetensorsTensor* SafetensorsReader::find(std::string_view name) const {
    const auto found =
        std::lower_bound(tensors_.begin(), tensors_.end(), name,
                         [](const SafetensorsTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
    return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

}  // namespace sluice
