// An example: a layer hook of one's own. The engine of this file multiplies with o_proj transposed and padded to whole tiles, and keeps a sum of each of its
// rows beside it; its loader writes the checkpoint's [out, in]. Everything up to the test is what an embedding program would write.
#include "tests/exchange/sync_bed.h"
#include "worker/layer_hook.h"
#include "worker/worker.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace engine {

using namespace sluice;

/// A weight as the engine's kernels want it. Its memory is made once and never moves.
struct TiledWeight {
    static constexpr std::int64_t kTile = 48;

    TiledWeight(std::int64_t out, std::int64_t in)
        : outputs(out),
          inputs(in),
          stride((out + kTile - 1) / kTile * kTile),
          values(static_cast<std::size_t>(in * stride), 0),
          parity(static_cast<std::size_t>(out), 0) {}

    std::int64_t outputs, inputs, stride;
    std::vector<std::uint16_t> values;  // [inputs, stride], bf16; the columns from `outputs` on are 0
    std::vector<std::uint16_t> parity;  // derived: of each output, all its bits XORed
};

class TileHook final : public LayerHook {
public:
    /// Gives every o_proj of the demand its kernel-format storage. What is in `weights` then goes into layer buffers.
    explicit TileHook(const Demand& demand) {
        for (std::size_t i = 0; i < demand.parameters.size(); ++i) {
            const Parameter& parameter = demand.parameters[i];
            if (parameter.name.ends_with(".o_proj.weight")) {
                weights.emplace(static_cast<ParameterId>(i), TiledWeight(parameter.shape[0], parameter.shape[1]));
            }
        }
    }

    // Set-up: where each weight will be found, in every version.
    Status prepare(LayerAddresses addresses, Device* device) override {
        if (device != nullptr) {
            return {StatusCode::kUnsupported, "these kernels run on the processor"};
        }
        for (const auto& [id, weight] : weights) {
            from_[id] = reinterpret_cast<const std::uint16_t*>(addresses[static_cast<std::size_t>(id)]);
        }
        return ok_status();
    }

    // A layer is here: its buffer is ours until we return.
    Status run(const LandedLayer& layer) override {
        for (const ParameterId id : layer.parameters) {
            if (const auto at = weights.find(id); at != weights.end()) {
                convert(from_[id], at->second);
            }
        }
        return ok_status();
    }

    std::map<ParameterId, TiledWeight> weights;

private:
    static void convert(const std::uint16_t* from, TiledWeight& to) {
        for (std::int64_t o = 0; o < to.outputs; ++o) {
            std::uint16_t parity = 0;
            for (std::int64_t i = 0; i < to.inputs; ++i) {
                const std::uint16_t value = from[o * to.inputs + i];
                to.values[static_cast<std::size_t>(i * to.stride + o)] = value;
                parity = static_cast<std::uint16_t>(parity ^ value);
            }
            to.parity[static_cast<std::size_t>(o)] = parity;
        }
    }

    std::map<ParameterId, const std::uint16_t*> from_;
};

}  // namespace engine

namespace sluice::test {
namespace {

TEST(OwnHookTest, WritesTheEnginesFormatAtTheSameAddresses) {
    BedOptions options;
    options.trainer = "tp=2";
    options.workers = {"tp=1"};
    SyncBed bed(options);
    BedRank& rank = bed.worker(0);
    std::unique_ptr<engine::TileHook> hook;
    // In an embedding program: places of the ParameterStore are ParameterStore::in_layer_buffer(), and the hook is in Worker::Hooks::layers.
    rank.buffered = [&](BedRank& r) {
        hook = std::make_unique<engine::TileHook>(r.demand());
        r.hooks.layers = {hook.get()};
        std::vector<ParameterId> buffered;
        for (const auto& [id, weight] : hook->weights) {
            buffered.push_back(id);
        }
        return buffered;
    };
    bed.create();
    ASSERT_EQ(hook->weights.size(), 3U) << "one for each layer";
    std::vector<const std::uint16_t*> addresses;
    for (const auto& [id, weight] : hook->weights) {
        addresses.push_back(weight.values.data());
    }
    for (std::uint64_t version = 1; version <= 3; ++version) {
        bed.sync(version);
        const auto expected = bed.model().parameters(rank.demand(), version);
        std::size_t number = 0;
        for (const auto& [id, weight] : hook->weights) {
            EXPECT_EQ(weight.values.data(), addresses[number++]);
            std::vector<std::uint16_t> loaded(static_cast<std::size_t>(weight.outputs * weight.inputs));
            std::memcpy(loaded.data(), expected[static_cast<std::size_t>(id)].data(), loaded.size() * 2);
            for (std::int64_t o = 0; o < weight.stride; ++o) {
                std::uint16_t parity = 0;
                for (std::int64_t i = 0; i < weight.inputs; ++i) {
                    const std::uint16_t want =
                        o < weight.outputs ? loaded[static_cast<std::size_t>(o * weight.inputs + i)] : std::uint16_t{0};
                    ASSERT_EQ(weight.values[static_cast<std::size_t>(i * weight.stride + o)], want)
                        << "version " << version << ", output " << o << ", input " << i;
                    parity = static_cast<std::uint16_t>(parity ^ want);
                }
                if (o < weight.outputs) {
                    ASSERT_EQ(weight.parity[static_cast<std::size_t>(o)], parity);
                }
            }
        }
    }
}

}  // namespace
}  // namespace sluice::test
