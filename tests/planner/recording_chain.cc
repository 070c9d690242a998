#include "tests/planner/recording_chain.h"

#include "planner/coverage.h"
#include "planner/recording_tensor.h"
#include "tests/planner/demand_memory.h"
#include "tests/planner/naive_tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

namespace sluice::test {
namespace {

constexpr std::int64_t kMostElements = 600;

Dims dims(const Index& index) { return Dims(index.begin(), index.end()); }
Index index(const Dims& d) { return Index(d.begin(), d.end()); }

// What a chain is made of, drawn from `draw`.
class Random {
public:
    explicit Random(Draw draw) : draw_(std::move(draw)) {}
    std::int64_t operator()(std::int64_t low, std::int64_t high) {
        return low + static_cast<std::int64_t>(draw_(static_cast<std::uint64_t>(high - low + 1)));
    }
    bool one_in(std::int64_t n) { return (*this)(1, n) == 1; }
    Index shape(std::int64_t most_dims) {
        Index out(static_cast<std::size_t>((*this)(0, most_dims)));
        for (std::int64_t& size : out) {
            size = one_in(25) ? 0 : one_in(4) ? 1 : (*this)(2, 6);
        }
        return out;
    }
    DType dtype() { return static_cast<DType>((*this)(0, one_in(2) ? 3 : kDTypeCount - 1)); }
    void shuffle(Index& values) {
        for (std::size_t i = values.size(); i > 1; --i) {
            std::swap(values[i - 1], values[static_cast<std::size_t>((*this)(0, static_cast<std::int64_t>(i) - 1))]);
        }
    }

private:
    Draw draw_;
};

// A factorisation of `elements` into a few sizes.
Index random_shape_of(Random& random, std::int64_t elements) {
    Index out;
    while (elements > 1 && out.size() < 4) {
        std::int64_t factor = random(1, elements);
        while (elements % factor != 0) {
            ++factor;
        }
        out.push_back(factor);
        elements /= factor;
    }
    if (elements != 1) {
        out.push_back(elements);
    }
    if (random.one_in(3)) {
        out.insert(out.begin() + random(0, static_cast<std::int64_t>(out.size())), 1);
    }
    random.shuffle(out);
    if (!out.empty() && random.one_in(3)) {
        out[static_cast<std::size_t>(random(0, static_cast<std::int64_t>(out.size()) - 1))] = -1;
    }
    return out;
}

// The tensor under test in both forms.
struct Both {
    RecordingTensor recorded;
    NaiveTensor naive;
};

class Chain {
public:
    Chain(Draw draw, OperationCounts& counts) : random_(std::move(draw)), counts_(counts) {
        const DType dtype = random_.dtype();
        std::vector<CatalogueTensor> tensors;
        const Index shape = random_.shape(5);
        for (const char* name : {"a", "b", "c"}) {
            tensors.push_back({name, dtype, dims(random_.one_in(3) ? random_.shape(5) : shape), 0, {}});
        }
        catalogue_ = std::make_unique<Catalogue>(std::move(Catalogue::create(std::move(tensors), 1)).value());
        recorder_ = std::make_unique<Recorder>(*catalogue_);
    }

    void run() {
        Both value = source();
        const std::int64_t length = random_(1, 8);
        for (std::int64_t i = 0; i < length; ++i) {
            if (value.naive.numel() > kMostElements) {
                break;
            }
            step(value);
            ASSERT_EQ(index(value.recorded.sizes()), value.naive.shape) << value.recorded.description();
            ASSERT_EQ(value.recorded.dtype(), value.naive.dtype) << value.recorded.description();
        }
        transfer(value);
    }

private:
    Both source() {
        const auto id = static_cast<TensorId>(random_(0, 2));
        const CatalogueTensor& tensor = (*catalogue_)[id];
        return {recorder_->tensor(id), NaiveTensor::make(id, tensor.dtype, index(tensor.shape))};
    }

    std::int64_t any_dim(const NaiveTensor& t) {
        const auto rank = static_cast<std::int64_t>(t.shape.size());
        return random_.one_in(15) ? random_(-rank - 2, rank + 1) : random_(-rank, std::max<std::int64_t>(rank, 1) - 1);
    }
    std::int64_t size_at(const NaiveTensor& t, std::int64_t dim) {
        const auto rank = static_cast<std::int64_t>(t.shape.size());
        return dim >= -rank && dim < rank ? t.shape[static_cast<std::size_t>(dim < 0 ? dim + rank : dim)] : 3;
    }
    Index permutation(std::size_t rank) {
        Index out(rank);
        std::iota(out.begin(), out.end(), 0);
        random_.shuffle(out);
        for (std::int64_t& d : out) {
            d -= random_.one_in(4) ? static_cast<std::int64_t>(rank) : 0;
        }
        if (!out.empty() && random_.one_in(15)) {
            out.back() = out.front();
        }
        return out;
    }

    // Runs one operation on both; they must agree on whether it is possible.
    template <class Recorded, class Naive>
    void apply(const char* name, Both& value, Recorded&& recorded, Naive&& naive) {
        const std::optional<NaiveTensor> expected = naive(value.naive);
        auto& [accepted, refused] = counts_[name];
        try {
            RecordingTensor got = recorded(value.recorded);
            ASSERT_TRUE(expected.has_value()) << "should be refused: " << got.description();
            value = {got, *expected};
            ++accepted;
        } catch (const RecordingRefused& error) {
            const std::string message = error.what();
            const std::size_t last = value.naive.shape.empty() ? 0 : value.naive.shape.size() - 1;
            // Documented differences: an element put together from different pieces; and PyTorch's stride of a size-1
            // last dimension.
            const bool known =
                message.find("lie apart") != std::string::npos ||
                (message.find("must have stride 1") != std::string::npos && value.naive.shape[last] == 1) ||
                (message.find("does not divide into elements") != std::string::npos &&
                 std::count(value.naive.shape.begin(), value.naive.shape.end(), 1) > 0) ||
                (std::string(name) == "view_dtype" && value.naive.numel() == 0);
            ASSERT_TRUE(!expected.has_value() || known) << message;
            ASSERT_NE(message.find(" refused: "), std::string::npos) << message;
            ASSERT_EQ(message.find('\n'), std::string::npos) << message;
            ++refused;
        }
    }
    // The same for operations with several results, of which one is kept.
    template <class Recorded, class Naive>
    void apply_parts(const char* name, Both& value, Recorded&& recorded, Naive&& naive) {
        const auto expected = naive(value.naive);
        std::int64_t pick = -1;
        if (expected && !expected->empty()) {
            pick = random_(0, static_cast<std::int64_t>(expected->size()) - 1);
        }
        apply(
            name, value,
            [&](const RecordingTensor& t) {
                const std::vector<RecordingTensor> parts = recorded(t);
                EXPECT_TRUE(expected.has_value()) << name << " should be refused: " << t.description();
                EXPECT_EQ(parts.size(), expected->size());
                return pick < 0 ? t : parts[static_cast<std::size_t>(pick)];
            },
            [&](const NaiveTensor& t) -> std::optional<NaiveTensor> {
                if (!expected) {
                    return std::nullopt;
                }
                return pick < 0 ? t : (*expected)[static_cast<std::size_t>(pick)];
            });
    }

    void step(Both& value) {
        const NaiveTensor& t = value.naive;
        const std::int64_t dim = any_dim(t);
        const std::int64_t size = size_at(t, dim);
        switch (random_(0, 24)) {
            case 0: {
                const std::int64_t start = random_(-size - (random_.one_in(10) ? 1 : 0), size);
                const std::int64_t length =
                    random_(random_.one_in(20) ? -1 : 0,
                            size - (start < 0 ? start + size : start) + (random_.one_in(10) ? 1 : 0));
                return apply(
                    "narrow", value, [&](auto& r) { return r.narrow(dim, start, length); },
                    [&](auto& n) { return n.narrow(dim, start, length); });
            }
            case 1: {
                const std::int64_t start = random_(-size - 2, size + 2);
                const std::int64_t stop = random_(-size - 2, size + 2);
                const std::int64_t by = random_(random_.one_in(15) ? 0 : 1, 4);
                return apply(
                    "slice", value, [&](auto& r) { return r.slice(dim, start, stop, by); },
                    [&](auto& n) { return n.slice(dim, start, stop, by); });
            }
            case 2: {
                const std::int64_t by = random_(2, 3);
                return apply(
                    "slice", value, [&](auto& r) { return r.slice(dim, 0, size, by); },
                    [&](auto& n) { return n.slice(dim, 0, size, by); });
            }
            case 3: {
                const std::int64_t at = random_(-size - (random_.one_in(10) ? 1 : 0), size - 1 + (size == 0 ? 1 : 0));
                return apply(
                    "select", value, [&](auto& r) { return r.select(dim, at); },
                    [&](auto& n) { return n.select(dim, at); });
            }
            case 4: {
                Index list(static_cast<std::size_t>(random_(0, 6)));
                const bool ascending = random_.one_in(2);
                for (std::size_t i = 0; i < list.size(); ++i) {
                    list[i] = ascending
                                  ? static_cast<std::int64_t>(i) % std::max<std::int64_t>(size, 1)
                                  : random_(-size - (random_.one_in(20) ? 1 : 0), std::max<std::int64_t>(size - 1, 0));
                }
                return apply(
                    "index_select", value, [&](auto& r) { return r.index_select(dim, list); },
                    [&](auto& n) { return n.index_select(dim, list); });
            }
            case 5: {
                const std::int64_t chunks = random_(random_.one_in(15) ? 0 : 1, 4);
                return apply_parts(
                    "chunk", value, [&](auto& r) { return r.chunk(chunks, dim); },
                    [&](auto& n) { return n.chunk(chunks, dim); });
            }
            case 6: {
                const std::int64_t part = random_(random_.one_in(15) ? -1 : 1, 4);
                return apply_parts(
                    "split", value, [&](auto& r) { return r.split(part, dim); },
                    [&](auto& n) { return n.split(part, dim); });
            }
            case 7: {
                Index sizes;
                for (std::int64_t left = size; left > 0;) {
                    sizes.push_back(random_(sizes.size() < 6 ? 0 : left, left));
                    left -= sizes.back();
                }
                if (random_.one_in(10)) {
                    sizes.push_back(1);
                }
                return apply_parts(
                    "split_sizes", value, [&](auto& r) { return r.split(std::span<const std::int64_t>(sizes), dim); },
                    [&](auto& n) { return n.split(sizes, dim); });
            }
            case 8:
                return apply_parts(
                    "unbind", value, [&](auto& r) { return r.unbind(dim); }, [&](auto& n) { return n.unbind(dim); });
            case 9:
            case 10: {
                const Index shape = random_.one_in(15) ? random_.shape(3) : random_shape_of(random_, t.numel());
                return apply(
                    "view", value, [&](auto& r) { return r.view(dims(shape)); },
                    [&](auto& n) { return n.view(shape); });
            }
            case 11:
            case 12: {
                const Index shape = random_.one_in(15) ? random_.shape(3) : random_shape_of(random_, t.numel());
                return apply(
                    "reshape", value, [&](auto& r) { return r.reshape(dims(shape)); },
                    [&](auto& n) { return n.reshape(shape); });
            }
            case 13: {
                const std::int64_t other = any_dim(t);
                return apply(
                    "flatten", value, [&](auto& r) { return r.flatten(dim, other); },
                    [&](auto& n) { return n.flatten(dim, other); });
            }
            case 14: {
                const Index sizes = random_shape_of(random_, size);
                return apply(
                    "unflatten", value, [&](auto& r) { return r.unflatten(dim, dims(sizes)); },
                    [&](auto& n) { return n.unflatten(dim, sizes); });
            }
            case 15: {
                const std::int64_t at = random_.one_in(2) ? dim : -dim - 1;
                return apply(
                    "unsqueeze", value, [&](auto& r) { return r.unsqueeze(at); },
                    [&](auto& n) { return n.unsqueeze(at); });
            }
            case 16:
                if (random_.one_in(3)) {
                    return apply(
                        "squeeze", value, [&](auto& r) { return r.squeeze(); }, [&](auto& n) { return n.squeeze(); });
                }
                return apply(
                    "squeeze_dim", value, [&](auto& r) { return r.squeeze(dim); },
                    [&](auto& n) { return n.squeeze(dim); });
            case 17: {
                const std::int64_t other = any_dim(t);
                return apply(
                    "transpose", value, [&](auto& r) { return r.transpose(dim, other); },
                    [&](auto& n) { return n.transpose(dim, other); });
            }
            case 18:
                if (random_.one_in(3)) {
                    return apply("t", value, [&](auto& r) { return r.t(); }, [&](auto& n) { return n.t(); });
                }
                [[fallthrough]];
            case 19: {
                const Index order = permutation(t.shape.size());
                return apply(
                    "permute", value, [&](auto& r) { return r.permute(dims(order)); },
                    [&](auto& n) { return n.permute(order); });
            }
            case 20: {
                Index from = permutation(t.shape.size());
                Index to = permutation(t.shape.size());
                const auto moved = static_cast<std::size_t>(random_(0, static_cast<std::int64_t>(from.size())));
                from.resize(moved);
                to.resize(moved);
                return apply(
                    "movedim", value, [&](auto& r) { return r.movedim(dims(from), dims(to)); },
                    [&](auto& n) { return n.movedim(from, to); });
            }
            case 21: {
                Index sizes = t.shape;
                for (std::int64_t& s : sizes) {
                    s = s == 1 ? random_(0, 3) : random_.one_in(2) ? -1 : s;
                }
                if (random_.one_in(2)) {
                    sizes.insert(sizes.begin(), random_(random_.one_in(10) ? -1 : 1, 3));
                }
                return apply(
                    "expand", value, [&](auto& r) { return r.expand(dims(sizes)); },
                    [&](auto& n) { return n.expand(sizes); });
            }
            case 22: {
                const std::int64_t kind = random_(0, 2);
                if (kind == 0) {
                    return apply(
                        "contiguous", value, [](auto& r) { return r.contiguous(); },
                        [](auto& n) { return n.contiguous(); });
                }
                if (kind == 1) {
                    return apply("clone", value, [](auto& r) { return r.clone(); }, [](auto& n) { return n.clone(); });
                }
                const DType target = random_.dtype();
                return apply("to", value, [&](auto& r) { return r.to(target); }, [&](auto& n) { return n.to(target); });
            }
            case 23: {
                const DType target = random_.dtype();
                return apply(
                    "view_dtype", value, [&](auto& r) { return r.view(target); },
                    [&](auto& n) { return n.view_as(target); });
            }
            default: {
                const Both other = random_.one_in(2) ? value : source();
                if (value.naive.numel() + other.naive.numel() > kMostElements) {
                    return;
                }
                return apply(
                    "cat", value, [&](auto& r) { return RecordingTensor::cat({r, other.recorded, r}, dim); },
                    [&](auto& n) { return NaiveTensor::cat({n, other.naive, n}, dim); });
            }
        }
    }

    // Copies the value into a random view of a parameter, carries the records out, and compares every element; and the
    // coverage proof with what was written.
    void transfer(const Both& value) {
        const Index& shape = value.naive.shape;
        Index order(shape.size());
        std::iota(order.begin(), order.end(), 0);
        random_.shuffle(order);
        // Dimension d of the parameter is order[d] of the value, with room around it and between its elements.
        Index room(shape.size());
        Index start(shape.size());
        Index by(shape.size());
        const bool roomy = shape.size() <= 5 && random_.one_in(2);
        for (std::size_t d = 0; d < shape.size(); ++d) {
            const std::int64_t size = shape[static_cast<std::size_t>(order[d])];
            start[d] = roomy ? random_(0, 2) : 0;
            by[d] = roomy && random_.one_in(3) ? 2 : 1;
            room[d] = start[d] + size * by[d] + (roomy ? random_(0, 1) : 0);
        }
        RecordingParameter target = recorder_->add_parameter("p", value.naive.dtype, dims(room));
        Index back(shape.size());
        for (std::size_t d = 0; d < shape.size(); ++d) {
            const std::int64_t size = shape[static_cast<std::size_t>(order[d])];
            target = target.slice(static_cast<std::int64_t>(d), start[d], start[d] + size * by[d], by[d]);
            back[static_cast<std::size_t>(order[d])] = static_cast<std::int64_t>(d);
        }
        target = target.permute(dims(back));
        ASSERT_NO_THROW(target.copy_(value.recorded)) << value.recorded.description();

        const Demand& demand = recorder_->demand();
        const DemandMemory memory(demand);
        ASSERT_TRUE(memory.faults().empty()) << memory.faults().front() << " " << value.recorded.description();
        const NaiveTensor everything = NaiveTensor::make(0, value.naive.dtype, room);
        std::vector<std::vector<Origin>> expected(static_cast<std::size_t>(everything.numel()));
        for (std::int64_t i = 0; i < value.naive.numel(); ++i) {
            std::int64_t rest = i;
            Index at(shape.size());
            for (std::size_t d = shape.size(); d-- > 0;) {
                at[d] = rest % shape[d];
                rest /= shape[d];
            }
            std::int64_t flat = 0;
            for (std::size_t d = 0; d < room.size(); ++d) {
                flat = flat * room[d] + start[d] + at[static_cast<std::size_t>(order[d])] * by[d];
            }
            expected[static_cast<std::size_t>(flat)].push_back(value.naive.origins[static_cast<std::size_t>(i)]);
        }
        ASSERT_EQ(memory.parameter(0), expected) << value.recorded.description();

        const DemandCoverage coverage = prove_coverage(demand);
        ASSERT_EQ(coverage.holes, everything.numel() - value.naive.numel()) << value.recorded.description();
        ASSERT_EQ(coverage.overlaps, 0) << value.recorded.description();
        ASSERT_EQ(coverage.status.ok(), coverage.holes == 0);
        check_source_coverage(demand, value);
    }

    void check_source_coverage(const Demand& demand, const Both& value) {
        std::vector<std::set<std::int64_t>> read(catalogue_->size());
        for (const Origin& origin : value.naive.origins) {
            for (std::int64_t b = 0; b < size_of(origin.source); ++b) {
                read[static_cast<std::size_t>(origin.tensor)].insert(origin.byte + b);
            }
        }
        const Demand* demands[] = {&demand};
        const SourceCoverage coverage = source_coverage(*catalogue_, demands);
        for (TensorId id = 0; id < static_cast<TensorId>(catalogue_->size()); ++id) {
            const CatalogueTensor& tensor = (*catalogue_)[id];
            const auto count = static_cast<std::int64_t>(read[static_cast<std::size_t>(id)].size());
            const bool listed = std::find(coverage.unread.begin(), coverage.unread.end(), id) != coverage.unread.end();
            ASSERT_EQ(listed, tensor.bytes() > 0 && count == 0);
            const auto partly = std::find_if(coverage.partly_read.begin(), coverage.partly_read.end(),
                                             [&](const CoverageGap& gap) { return gap.id == id; });
            ASSERT_EQ(partly != coverage.partly_read.end(), count > 0 && count < tensor.bytes());
            if (partly != coverage.partly_read.end()) {
                const std::int64_t item = size_of(tensor.dtype);
                ASSERT_EQ(partly->elements, (tensor.bytes() - count + item - 1) / item) << value.recorded.description();
            }
        }
    }

    Random random_;
    OperationCounts& counts_;
    std::unique_ptr<Catalogue> catalogue_;
    std::unique_ptr<Recorder> recorder_;
};

}  // namespace

void check_recording_chain(Draw draw, OperationCounts& counts) { Chain(std::move(draw), counts).run(); }

}  // namespace sluice::test
