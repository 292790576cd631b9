package abi

// KFDCreateEventArgs belongs to [KFDIocCreateEvent]. The first event of a
// process may name the BO that becomes its event page in EventPageOffset.
type KFDCreateEventArgs struct {
	EventPageOffset  uint64 `c:"event_page_offset"`
	EventTriggerData uint32 `c:"event_trigger_data"`
	EventType        uint32 `c:"event_type"`
	AutoReset        uint32 `c:"auto_reset"`
	NodeID           uint32 `c:"node_id"`
	EventID          uint32 `c:"event_id"`
	EventSlotIndex   uint32 `c:"event_slot_index"`
}

// KFDEventArgs belongs to [KFDIocDestroyEvent], [KFDIocSetEvent] and
// [KFDIocResetEvent].
type KFDEventArgs struct {
	EventID uint32 `c:"event_id"`
	Pad     uint32
}

// KFDWaitEventsArgs belongs to [KFDIocWaitEvents]. Timeout is in milliseconds,
// 0xffffffff for none.
type KFDWaitEventsArgs struct {
	EventsPtr  uint64 `c:"events_ptr"` // array of KFDEventData
	NumEvents  uint32 `c:"num_events"`
	WaitForAll uint32 `c:"wait_for_all"`
	Timeout    uint32 `c:"timeout"`
	WaitResult uint32 `c:"wait_result"`
}

// KFDMemoryException is kfd_hsa_memory_exception_data, flattened.
type KFDMemoryException struct {
	NotPresent uint32 `c:"failure.NotPresent"`
	ReadOnly   uint32 `c:"failure.ReadOnly"`
	NoExecute  uint32 `c:"failure.NoExecute"`
	Imprecise  uint32 `c:"failure.imprecise"`
	VA         uint64 `c:"va"`
	GPUID      uint32 `c:"gpu_id"`
	ErrorType  uint32 `c:"ErrorType"`
}

// KFDEventData is one element of the array of [KFDWaitEventsArgs]. The union
// is given as its larger member; a hardware exception lies in its first 16
// bytes.
type KFDEventData struct {
	Memory  KFDMemoryException `c:"memory_exception_data"`
	Ext     uint64             `c:"kfd_event_data_ext"`
	EventID uint32             `c:"event_id"`
	Pad     uint32
}
