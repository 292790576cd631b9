// Package topology reads a host's KFD topology and maps the GPUs of a
// checkpoint onto those of a host.
//
// # When a mapping is valid
//
// A mapping pairs every GPU of the checkpoint with one of the host, and there
// are as many on either side. It is valid if
//
//   - each pair's properties agree: most must be equal; firmware versions, VRAM
//     size, cache and GWS counts may not be smaller on the host; capability must
//     be equal. The last six are waived by a [Switch] each;
//   - each GPU of the host has at least as many usable I/O links as its
//     partner; a link is usable if its peer exists, which it does not for a
//     device that a cgroup hides;
//   - the GPUs of one XGMI hive (GPUs joined by XGMI links in both directions)
//     land in one hive, and different hives in different ones. GPUs of no hive
//     may land anywhere;
//   - each link of a GPU to a CPU has a counterpart: XGMI may stand in for PCIe
//     and a bidirectional link for a one-way link, never the reverse;
//   - unless [NUMA] is waived, CPUs that the checkpoint's GPUs link to are
//     paired one to one with CPUs of the host, counterparts lead to the
//     partner CPU, and all of them but one a CPU are of the same type: it is
//     the link that establishes the pair which may be of a better type.
//
// These are the rules of CRIU's amdgpu plugin, freed of the order in which its
// search happens to visit devices. The plugin gives up on some mappings that
// its own rules allow; [Map] finds one whenever one exists. One difference in
// the rules: a hive consists of GPUs alone, where the plugin lets an XGMI link
// to a CPU pull that CPU into it.
//
// # The search
//
// Once the partner of every hive and every CPU is fixed, what is left is a
// bipartite matching, which is easy. So the search branches on hives and CPUs
// only. At every step it drops each choice for which no perfect matching of the
// GPUs would remain even if all open choices were free, gives up when the
// remaining choices cannot be all different, and branches where fewest remain.
// Choices that keep a device's number come first, so that a host maps onto
// itself as it is.
package topology
