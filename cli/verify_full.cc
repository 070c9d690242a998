#include "cli/verify_full.h"

#include "cli/source_bytes.h"
#include "runtime/base/strided_copy.h"
#include "runtime/services/copy_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace sluice::cli {
namespace {

// Compared at a time: an embedding is one run of a gigabyte.
constexpr std::int64_t kPortion = 1 << 20;

// Which trainer the byte of the parameter came from, or -1.
int owner_of(const Route& route, ParameterId parameter, std::int64_t byte) {
    for (const Chunk& chunk : route.chunks) {
        for (const Piece& piece : chunk.pieces) {
            if (piece.parameter != parameter) {
                continue;
            }
            const std::int64_t item = piece.converts() ? size_of(piece.parameter_dtype) : piece.copy.item;
            bool found = false;
            for_each_item(piece.copy,
                          [&](std::int64_t, std::int64_t dst) { found = found || (dst <= byte && byte < dst + item); });
            if (found) {
                return chunk.owner;
            }
        }
    }
    return -1;
}

class Comparison {
public:
    Comparison(const Catalogue& catalogue, const Demand& demand, const Route& route, const ParameterStore& store,
               const WeightValues& values, std::uint64_t version)
        : catalogue_(catalogue),
          demand_(demand),
          route_(route),
          store_(store),
          source_(catalogue, values, version),
          version_(version) {}

    FullVerification run() {
        for (const CopyRecord& record : demand_.records) {
            if (!store_.buffered(record.parameter)) {
                compare(record);
            }
        }
        for (const ZeroFill& fill : demand_.fills) {
            compare(fill);
        }
        return result_;
    }

private:
    void compare(const CopyRecord& record) {
        const CatalogueTensor& tensor = catalogue_[record.tensor];
        const std::int64_t stored = size_of(tensor.dtype);
        const StridedCopy copy = coalesce(record.copy, record.converts());
        const std::byte* base = store_.address(record.parameter);
        const std::int64_t target = record.converts() ? size_of(record.parameter_dtype) : copy.item;
        for_each_item(copy, [&](std::int64_t src, std::int64_t dst) {
            if (record.converts()) {
                StridedCopy one;
                one.item = copy.item;
                converted_.resize(static_cast<std::size_t>(target));
                converting_copy(one, record.source_dtype, record.parameter_dtype,
                                source_.read(record.tensor, src, copy.item), converted_.data());
                check(record.parameter, dst, converted_.data(), base + dst, target, tensor.name, src / stored);
                return;
            }
            for (std::int64_t at = 0; at < copy.item; at += kPortion) {
                const std::int64_t bytes = std::min(kPortion, copy.item - at);
                check(record.parameter, dst + at, source_.read(record.tensor, src + at, bytes), base + dst + at, bytes,
                      tensor.name, (src + at) / stored);
            }
        });
    }

    void compare(const ZeroFill& fill) {
        const StridedCopy box = coalesce(fill.box);
        const std::byte* base = store_.address(fill.parameter);
        const std::vector<std::byte> zeros(static_cast<std::size_t>(std::min(kPortion, box.item)), std::byte{0});
        for_each_item(box, [&](std::int64_t, std::int64_t dst) {
            for (std::int64_t at = 0; at < box.item; at += kPortion) {
                check(fill.parameter, dst + at, zeros.data(), base + dst + at, std::min(kPortion, box.item - at),
                      "padding", 0);
            }
        });
    }

    void check(ParameterId parameter, std::int64_t at, const std::byte* expected, const std::byte* found,
               std::int64_t bytes, const std::string& tensor, std::int64_t source_element) {
        if (std::memcmp(expected, found, static_cast<std::size_t>(bytes)) != 0) {
            count(parameter, at, expected, found, bytes, tensor, source_element);
        }
    }

    void count(ParameterId parameter, std::int64_t at, const std::byte* expected, const std::byte* found,
               std::int64_t bytes, const std::string& tensor, std::int64_t source_element) {
        const Parameter& p = demand_.parameters[static_cast<std::size_t>(parameter)];
        const std::int64_t size = size_of(p.dtype);
        for (std::int64_t offset = 0; offset < bytes; offset += size) {
            if (std::memcmp(expected + offset, found + offset,
                            static_cast<std::size_t>(std::min(size, bytes - offset))) == 0) {
                continue;
            }
            if (result_.mismatches++ == 0) {
                const std::int64_t byte = at + offset;
                const int owner = owner_of(route_, parameter, byte);
                result_.status =
                    Status(StatusCode::kMismatch,
                           fmt::format("version {}: parameter {} element {} is not element {} of {} ({})", version_,
                                       p.name, byte / size, source_element + offset / size, tensor,
                                       owner < 0 ? "not pulled" : fmt::format("pulled from trainer {}", owner)));
            }
        }
    }

    const Catalogue& catalogue_;
    const Demand& demand_;
    const Route& route_;
    const ParameterStore& store_;
    SourceBytes source_;
    std::uint64_t version_;
    std::vector<std::byte> converted_;
    FullVerification result_;
};

}  // namespace

FullVerification verify_full(const Catalogue& catalogue, const Demand& demand, const Route& route,
                             const ParameterStore& store, const WeightValues& values, std::uint64_t version) {
    return Comparison(catalogue, demand, route, store, values, version).run();
}

}  // namespace sluice::cli
