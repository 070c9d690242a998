// Each finding of `sluice doctor`, from facts that are made up for it.
#include "cli/doctor/findings.h"
#include "cli/doctor/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

namespace sluice::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
namespace fs = std::filesystem;

VerbsPort port(const std::string& name) {
    return {name, "ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)", "pci0000:10/0000:10:01.0/0000:11:00.0", 0};
}

LinkProbe one_sided(const std::string& transport) {
    LinkProbe probe;
    probe.transport = transport;
    probe.said_one_sided = probe.found_one_sided = true;
    probe.bytes_per_second = 9e9;
    return probe;
}

LinkProbe emulated(const std::string& transport) {
    LinkProbe probe = one_sided(transport);
    probe.said_one_sided = probe.found_one_sided = false;
    return probe;
}

// A node on which everything is as it should be.
Examination good_node() {
    Examination out;
    out.ucx.major = 1;
    out.ucx.minor = 22;
    out.ucx.path = "/opt/ucx/lib/libucp.so.0";
    out.transports = {"tcp/eth0", "cma/memory", "rc_mlx5/mlx5_0:1"};
    out.memory_kinds = {"host", "cuda"};
    out.mpi = "Open MPI v4.1.4";
    out.node.ports = {port("mlx5_0:1")};
    out.node.verbs_files = out.node.usable_verbs_files = 1;
    out.node.shared_memory_bytes = std::uint64_t{8} << 30;
    out.node.ptrace_scope = 0;
    out.node.gpus = {{"0000:12:00.0", "NVIDIA H200", "pci0000:10/0000:10:01.0/0000:12:00.0", 0}};
    out.node.peermem = true;
    out.links = {{false, MemoryKind::kHost, one_sided("cma/memory")},
                 {true, MemoryKind::kHost, one_sided("rc_mlx5/mlx5_0:1")},
                 {false, MemoryKind::kCuda, one_sided("cuda_ipc/cuda")},
                 {true, MemoryKind::kCuda, one_sided("rc_mlx5/mlx5_0:1")}};
    return out;
}

// The findings about one subject that are not good.
std::vector<Finding> wrong(const Examination& examination, const std::string& subject) {
    std::vector<Finding> out;
    for (const Finding& finding : examine(examination)) {
        EXPECT_EQ(finding.severity == Severity::kGood, finding.remedy.empty())
            << finding.what << ": what is wrong has a remedy, and nothing else has";
        if (finding.subject == subject && finding.severity != Severity::kGood) {
            out.push_back(finding);
        }
    }
    return out;
}

// The one thing that is wrong about a subject.
Finding only_wrong(const Examination& examination, const std::string& subject) {
    const std::vector<Finding> found = wrong(examination, subject);
    EXPECT_EQ(found.size(), 1u) << doctor_page(examine(examination));
    return found.empty() ? Finding{} : found.front();
}

TEST(DoctorTest, AGoodNodeIsFit) {
    const Examination node = good_node();
    EXPECT_TRUE(fit(node));
    for (const Finding& finding : examine(node)) {
        EXPECT_EQ(finding.severity, Severity::kGood) << finding.what;
        EXPECT_THAT(finding.remedy, IsEmpty()) << finding.what;
    }
}

TEST(DoctorTest, AnOldUcxMakesANodeUnfit) {
    Examination node = good_node();
    node.ucx_status = invalid_argument("UCX 1.13.1 is too old");
    node.links.clear();
    node.transports.clear();
    EXPECT_FALSE(fit(node));
    const Finding finding = only_wrong(node, "UCX");
    EXPECT_EQ(finding.severity, Severity::kBad);
    EXPECT_THAT(finding.what, HasSubstr("1.13.1"));
    EXPECT_THAT(finding.remedy, HasSubstr("UCX_ROOT"));
}

TEST(DoctorTest, AUcxWithoutVerbsIsFoundWhereThereAreDevices) {
    Examination node = good_node();
    node.transports = {"tcp/eth0", "cma/memory"};
    EXPECT_THAT(only_wrong(node, "UCX").remedy, HasSubstr("built with verbs"));
    node.node.ports[0].state = "DOWN";
    EXPECT_THAT(wrong(node, "UCX"), IsEmpty()) << "UCX leaves a port that is down alone";
    node.node.ports.clear();
    EXPECT_THAT(wrong(node, "UCX"), IsEmpty());
}

TEST(DoctorTest, AUcxWithoutCudaIsFoundWhereThereAreGpus) {
    Examination node = good_node();
    node.memory_kinds = {"host"};
    EXPECT_THAT(only_wrong(node, "UCX").remedy, HasSubstr("--staged"));
}

TEST(DoctorTest, AnEmulatedLinkMakesANodeUnfitAndIsExplained) {
    Examination node = good_node();
    node.links[1].probe = emulated("ud_verbs/mlx5_0:1");
    EXPECT_FALSE(fit(node));
    Finding finding = only_wrong(node, "pull");
    EXPECT_EQ(finding.severity, Severity::kBad);
    EXPECT_THAT(finding.what, HasSubstr("host memory, between hosts: ud_verbs/mlx5_0:1, emulated"));
    EXPECT_THAT(finding.remedy, HasSubstr("unreliable datagrams"));

    node.links[1].probe = emulated("tcp/eth0");
    EXPECT_THAT(only_wrong(node, "pull").remedy, HasSubstr("UCX_TLS"));
    node.node.ports[0].state = "DOWN";
    EXPECT_THAT(only_wrong(node, "pull").remedy, HasSubstr("no port is active"));
    node.node.ports.clear();
    EXPECT_THAT(only_wrong(node, "pull").remedy, AllOf(HasSubstr("no verbs device"), Not(HasSubstr("--staged"))));
}

TEST(DoctorTest, GpuMemoryGoesStagedBetweenHostsWithoutVerbsDevices) {
    Examination node = good_node();
    node.node.ports.clear();
    node.links[1].probe = one_sided("tcp/eth0");
    node.links[3].probe = {};
    node.links[3].probe.problem = "Request canceled";
    EXPECT_THAT(only_wrong(node, "pull").remedy, HasSubstr("only with --staged"));
}

TEST(DoctorTest, WhatUcxSaysDoesNotCountWhenReadsWaitForTheOwner) {
    Examination node = good_node();
    node.links[0].probe.found_one_sided = false;
    EXPECT_FALSE(fit(node));
    EXPECT_THAT(only_wrong(node, "pull").what, HasSubstr("reads waited for the owner"));
}

TEST(DoctorTest, ALinkThatFailsMakesANodeUnfit) {
    Examination node = good_node();
    node.links[3].probe = {};
    node.links[3].probe.problem = "registering failed";
    EXPECT_FALSE(fit(node));
    const Finding finding = only_wrong(node, "pull");
    EXPECT_THAT(finding.what, HasSubstr("GPU memory, between hosts: fails: registering failed"));
    EXPECT_THAT(finding.remedy, HasSubstr("GPUDirect"));
}

TEST(DoctorTest, APortThatIsDownIsNamed) {
    Examination node = good_node();
    VerbsPort down = port("mlx5_1:1");
    down.state = "DOWN";
    node.node.ports.push_back(down);
    EXPECT_THAT(only_wrong(node, "devices").what, HasSubstr("mlx5_1:1 DOWN"));
    EXPECT_THAT(only_wrong(node, "devices").remedy, HasSubstr("subnet manager"));
    node.node.ports.back().link_layer = "Ethernet";
    EXPECT_THAT(only_wrong(node, "devices").remedy, HasSubstr("ip link set"));
}

TEST(DoctorTest, DevicesWithoutTheirFilesAreFound) {
    Examination node = good_node();
    node.node.usable_verbs_files = 0;
    EXPECT_THAT(only_wrong(node, "devices").what, HasSubstr("may not open"));
    node.node.verbs_files = 0;
    EXPECT_THAT(only_wrong(node, "devices").remedy, HasSubstr("--device=/dev/infiniband"));
    node.node.ports.clear();
    EXPECT_EQ(only_wrong(node, "devices").severity, Severity::kNote);
}

TEST(DoctorTest, ASmallLimitOfLockedMemoryIsBadWhereThereAreDevices) {
    Examination node = good_node();
    node.node.locked_bytes = 65536;
    Finding finding = only_wrong(node, "memory");
    EXPECT_EQ(finding.severity, Severity::kBad);
    EXPECT_FALSE(fit(node)) << "the few megabytes that were tried are not all that a rank registers";
    EXPECT_THAT(finding.what, HasSubstr("64"));
    EXPECT_THAT(finding.remedy, HasSubstr("ulimit -l unlimited"));
    node.links[1].probe.problem = "registering failed";
    EXPECT_THAT(only_wrong(node, "pull").remedy, HasSubstr("see memory"));
    node.links[1].probe.problem.clear();
    node.node.ports.clear();
    EXPECT_EQ(only_wrong(node, "memory").severity, Severity::kNote);
    EXPECT_TRUE(fit(node));
    node.node.ignores_locked_limit = true;
    EXPECT_THAT(wrong(node, "memory"), IsEmpty());
    node.node.ignores_locked_limit = false;
    node.node.locked_bytes = std::uint64_t{1} << 40;
    EXPECT_THAT(wrong(node, "memory"), IsEmpty());
}

TEST(DoctorTest, LittleSharedMemoryIsNoted) {
    Examination node = good_node();
    node.node.shared_memory_bytes = std::uint64_t{64} << 20;
    EXPECT_THAT(only_wrong(node, "memory").remedy, HasSubstr("--shm-size"));
}

TEST(DoctorTest, RefusedReadsOfOtherProcessesAreTracedToTheirReason) {
    Examination node = good_node();
    node.links[0].probe.cma_refused = "process_vm_readv: Operation not permitted";
    node.node.ptrace_scope = 1;
    EXPECT_THAT(only_wrong(node, "ptrace").what, HasSubstr("so cma does not work (mapped copies do)"));
    EXPECT_THAT(only_wrong(node, "ptrace").remedy, HasSubstr("ptrace_scope=0"));
    node.node.ptrace_scope.reset();
    EXPECT_THAT(only_wrong(node, "ptrace").remedy, HasSubstr("seccomp"));
    node.links[0].probe = emulated("tcp/lo");
    node.links[0].probe.cma_refused = "process_vm_readv: Operation not permitted";
    EXPECT_THAT(only_wrong(node, "pull").remedy, HasSubstr("ptrace"));
    node.links[0].probe.mapping_refused = "cannot map 1 B of shared memory";
    EXPECT_EQ(wrong(node, "ptrace").size(), 2u);
    node.links[0].probe.cma_refused.clear();
    EXPECT_THAT(only_wrong(node, "ptrace").what, HasSubstr("so mapped copies do not work"));
    EXPECT_THAT(only_wrong(node, "ptrace").remedy, HasSubstr("as one user"));
}

TEST(DoctorTest, GpusThatNicsCannotReadAreFound) {
    Examination node = good_node();
    node.node.peermem = false;
    EXPECT_THAT(wrong(node, "GPUDirect"), IsEmpty()) << "reads between hosts were tried and are one-sided";
    node.links[3].probe = emulated("tcp/eth0");
    EXPECT_THAT(only_wrong(node, "GPUDirect").remedy, HasSubstr("nvidia_peermem"));
    node.node.open_gpu_driver = true;
    EXPECT_THAT(wrong(node, "GPUDirect"), IsEmpty());
    node.node.ports.clear();
    node.node.open_gpu_driver = false;
    EXPECT_THAT(wrong(node, "GPUDirect"), IsEmpty()) << "without NICs there is nothing that could read";
}

TEST(DoctorTest, AGpuFarFromEveryNicIsNoted) {
    Examination node = good_node();
    node.node.ports[0].pci = "pci0000:80/0000:80:01.0/0000:81:00.0";
    node.node.ports[0].numa_node = 1;
    const Finding finding = only_wrong(node, "GPUDirect");
    EXPECT_THAT(finding.what, HasSubstr("nearest port mlx5_0:1, on another NUMA node"));
    EXPECT_THAT(finding.remedy, HasSubstr("--net-device"));
}

TEST(DoctorTest, AGpuThatDoesNotWorkIsBadAndNoneIsNoted) {
    Examination node = good_node();
    node.cuda.problem = "no CUDA driver";
    EXPECT_EQ(only_wrong(node, "GPU").severity, Severity::kBad);
    EXPECT_THAT(only_wrong(node, "GPU").remedy, HasSubstr("CUDA_VISIBLE_DEVICES"));
    // What follows of it is traced to it.
    node.memory_kinds = {"host"};
    node.links[2].probe = {};
    node.links[2].probe.problem = "no GPU memory";
    EXPECT_THAT(only_wrong(node, "pull").remedy, HasSubstr("see GPU below"));
    EXPECT_EQ(only_wrong(node, "GPU").severity, Severity::kBad);
    node = good_node();
    node.cuda.problem = "no CUDA driver";
    node.node.gpus.clear();
    EXPECT_EQ(only_wrong(node, "GPU").severity, Severity::kNote);
}

TEST(DoctorTest, DistancesFollowThePciTree) {
    const Gpu gpu{"", "", "pci0000:10/0000:10:01.0/0000:12:00.0", 0};
    VerbsPort other = port("mlx5_0:1");
    EXPECT_EQ(distance(gpu, other), PciDistance::kSwitch);
    other.pci = "pci0000:10/0000:10:03.0/0000:13:00.0";
    EXPECT_EQ(distance(gpu, other), PciDistance::kHostBridge);
    other.pci = "pci0000:20/0000:20:03.0/0000:23:00.0";
    EXPECT_EQ(distance(gpu, other), PciDistance::kNumaNode);
    other.numa_node = 1;
    EXPECT_EQ(distance(gpu, other), PciDistance::kSystem);
    other.numa_node = -1;
    EXPECT_EQ(distance(gpu, other), PciDistance::kUnknown);
    other.pci = "";
    EXPECT_EQ(distance(gpu, other), PciDistance::kUnknown);
}

TEST(DoctorTest, PageAndJsonSayTheSame) {
    Examination node = good_node();
    node.links[1].probe = emulated("tcp/eth0");
    const std::vector<Finding> findings = examine(node);
    const std::string page = doctor_page(findings);
    const nlohmann::json json = doctor_json(node, findings);
    EXPECT_EQ(json["schema"], 1);
    EXPECT_EQ(json["fit"], false);
    ASSERT_EQ(json["findings"].size(), findings.size());
    for (std::size_t i = 0; i < findings.size(); ++i) {
        EXPECT_THAT(page, HasSubstr(findings[i].what));
        EXPECT_EQ(json["findings"][i]["what"], findings[i].what);
        EXPECT_EQ(json["findings"][i]["remedy"], findings[i].remedy);
    }
    EXPECT_EQ(json["links"][1]["transport"], "tcp/eth0");
    EXPECT_EQ(json["links"][1]["one_sided"], false);
    EXPECT_EQ(json["links"][1]["between_hosts"], true);
    EXPECT_EQ(json["ports"][0]["name"], "mlx5_0:1");
    EXPECT_EQ(json["gpus"][0]["model"], "NVIDIA H200");
}

TEST(DoctorTest, BetweenHostsThereIsNeitherSharedMemoryNorCma) {
    EXPECT_EQ(network_transports(""), "^sm,cuda_ipc");
    EXPECT_EQ(network_transports("all"), "^sm,cuda_ipc");
    EXPECT_EQ(network_transports("^ud"), "^ud,sm,cuda_ipc");
    EXPECT_EQ(network_transports("tcp,cma,sysv,self"), "tcp,self");
    EXPECT_EQ(network_transports("rc,cuda,sm"), "rc,cuda_copy,gdr_copy");
    EXPECT_EQ(network_transports("cma"), "self");
}

// A copy of the files that facts are read from.
class NodeFactsTest : public testing::Test {
protected:
    void SetUp() override {
        root_ = fs::temp_directory_path() / ("node_facts." + std::to_string(::getpid()));
        fs::remove_all(root_);
    }
    void TearDown() override { fs::remove_all(root_); }

    void write(const std::string& path, const std::string& content) {
        fs::create_directories((root_ / path).parent_path());
        std::ofstream(root_ / path) << content << '\n';
    }
    void link(const std::string& path, const std::string& target) {
        fs::create_directories((root_ / path).parent_path());
        fs::create_symlink(root_ / target, root_ / path);
    }

    fs::path root_;
};

TEST_F(NodeFactsTest, AreReadFromTheirFiles) {
    const std::string nic = "sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0";
    const std::string gpu = "sys/devices/pci0000:10/0000:10:01.0/0000:12:00.0";
    const std::string verbs = nic + "/infiniband/mlx5_0";
    write(nic + "/numa_node", "1");
    write(gpu + "/numa_node", "1");
    write(verbs + "/ports/1/state", "4: ACTIVE");
    write(verbs + "/ports/1/link_layer", "Ethernet");
    write(verbs + "/ports/1/rate", "100 Gb/sec (2X HDR)");
    write(verbs + "/ports/2/state", "1: DOWN");
    link(verbs + "/device", nic);
    link("sys/class/infiniband/mlx5_0", verbs);
    link("sys/bus/pci/devices/0000:12:00.0", gpu);
    write("proc/driver/nvidia/gpus/0000:12:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 1");
    write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1");
    write("proc/self/status", "Name:\tx\nCapEff:\t0000000000084000");
    write("proc/sys/kernel/yama/ptrace_scope", "1");
    write("sys/module/nvidia_peermem/initstate", "live");
    write("dev/infiniband/uverbs0", "");
    write("dev/infiniband/rdma_cm", "");

    const NodeFacts facts = read_node_facts(root_);
    ASSERT_EQ(facts.ports.size(), 2u);
    EXPECT_EQ(facts.ports[0].name, "mlx5_0:1");
    EXPECT_EQ(facts.ports[0].state, "ACTIVE");
    EXPECT_EQ(facts.ports[0].link_layer, "Ethernet");
    EXPECT_EQ(facts.ports[0].rate, "100 Gb/sec (2X HDR)");
    EXPECT_EQ(facts.ports[0].numa_node, 1);
    EXPECT_EQ(facts.ports[0].pci, "pci0000:10/0000:10:01.0/0000:11:00.0");
    EXPECT_EQ(facts.ports[1].name, "mlx5_0:2");
    EXPECT_EQ(facts.ports[1].state, "DOWN");
    ASSERT_EQ(facts.gpus.size(), 1u);
    EXPECT_EQ(facts.gpus[0].model, "NVIDIA H200");
    EXPECT_EQ(distance(facts.gpus[0], facts.ports[0]), PciDistance::kSwitch);
    EXPECT_TRUE(facts.peermem);
    EXPECT_TRUE(facts.open_gpu_driver);
    EXPECT_TRUE(facts.may_ptrace);
    EXPECT_TRUE(facts.ignores_locked_limit);
    EXPECT_EQ(facts.ptrace_scope, 1);
    EXPECT_EQ(facts.verbs_files, 1);
    EXPECT_EQ(facts.usable_verbs_files, 1);
}

TEST_F(NodeFactsTest, AreEmptyWhereThereIsNothing) {
    const NodeFacts facts = read_node_facts(root_);
    EXPECT_THAT(facts.ports, IsEmpty());
    EXPECT_THAT(facts.gpus, IsEmpty());
    EXPECT_FALSE(facts.peermem);
    EXPECT_FALSE(facts.open_gpu_driver);
    EXPECT_FALSE(facts.may_ptrace);
    EXPECT_FALSE(facts.ptrace_scope.has_value());
    EXPECT_EQ(facts.verbs_files, 0);
}

}  // namespace
}  // namespace sluice::cli
