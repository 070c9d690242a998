#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/shape.h"
#include "runtime/base/status.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// The safetensors format. Files come from outside: everything in them is checked before it is used, nothing is
/// allocated by a claimed size, and every error is one line with file and field.
namespace sluice {

/// A tensor of a file: its bytes are row-major, little-endian, and need not be aligned to anything.
struct SafetensorsTensor {
    std::string name;
    DType dtype = DType::kF32;
    Dims shape;
    std::span<const std::byte> bytes;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

/// What one file holds. The tensors are ordered by name, bytewise; their bytes lie in the memory that was parsed.
struct SafetensorsContents {
    std::vector<SafetensorsTensor> tensors;
    SafetensorsMetadata metadata;
};

/// Parses a whole file in memory; `where` names it in errors.
Result<SafetensorsContents> parse_safetensors(std::span<const std::byte> file, const std::string& where);

/// The tensors of a file, or of a checkpoint directory: the shards that model.safetensors.index.json names, or, without
/// an index, all *.safetensors. The files are mapped; they must not be changed while the object lives.
class SafetensorsReader {
public:
    static Result<SafetensorsReader> open(const std::filesystem::path& path);

    SafetensorsReader(SafetensorsReader&&) noexcept;
    SafetensorsReader& operator=(SafetensorsReader&&) noexcept;
    ~SafetensorsReader();

    /// Ordered by name, bytewise, over all files. Valid while the reader lives, also after it was moved.
    [[nodiscard]] std::span<const SafetensorsTensor> tensors() const { return tensors_; }
    /// nullptr when there is none of that name.
    [[nodiscard]] const SafetensorsTensor* find(std::string_view name) const;
    /// __metadata__ of a single file; of several files, what the first one (by name) says about each key.
    [[nodiscard]] const SafetensorsMetadata& metadata() const { return metadata_; }
    [[nodiscard]] const std::vector<std::filesystem::path>& files() const { return files_; }

private:
    class Mapping;

    SafetensorsReader();
    /// Maps and parses one more file; `tensor_files` gets the file of each tensor of it.
    Status add_file(const std::filesystem::path& path, std::vector<std::size_t>& tensor_files);
    Status open_directory(const std::filesystem::path& directory);

    std::vector<std::unique_ptr<Mapping>> mappings_;
    std::vector<std::filesystem::path> files_;
    std::vector<SafetensorsTensor> tensors_;
    SafetensorsMetadata metadata_;
};

/// Writes `tensors` and `metadata` to `path`, replacing a file of that name only once all is written. The data is
/// ordered by falling item size, so that every tensor is aligned in the file. Refuses bytes that do not fit the shape,
/// and a name that comes twice or is no UTF-8.
Status write_safetensors(const std::filesystem::path& path, std::span<const SafetensorsTensor> tensors,
                         const SafetensorsMetadata& metadata);

}  // namespace sluice
